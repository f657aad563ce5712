"""``framegate channels``."""

import json
from collections.abc import Iterator

import pytest

from tests.fakes.cli import Cli, served
from tests.fakes.plane import channel_row, closed_row


@pytest.fixture
def cli() -> Iterator[Cli]:
    with served() as cli:
        cli.plane.add(channel_row("0-1-7"), channel_row("1-1-8", "plain"))
        yield cli


def test_list_shows_a_line_for_each_channel(cli: Cli) -> None:
    lines = cli("channels", "list").stdout.splitlines()
    assert lines[0].split()[:2] == ["ID", "LISTENER"]
    assert [line.split()[0] for line in lines[1:]] == ["0-1-7", "1-1-8"]
    assert "TLSv1.3" not in lines[1]


def test_list_as_json_has_every_field_with_numbers_as_numbers(cli: Cli) -> None:
    (row,) = cli.json("channels", "list", "--filter", "listener=plain")
    assert (row["id"], row["state"], row["request"], row["pending_send_bytes"]) == (
        "1-1-8",
        "STATE_OPEN",
        {"frame_count": 3, "total_bytes": 300, "unsent_bytes": 0, "frames_per_second": 0.0, "bytes_per_second": 0.0},
        7,
    )
    assert row["mute_causes"] == []


def test_list_follows_the_pages_up_to_its_limit(cli: Cli) -> None:
    cli.plane.add(*(channel_row(f"2-1-{number}") for number in range(1, 1200)))
    assert len(cli.json("channels", "list", "--limit", "1100")) == 1100
    assert len(cli.json("channels", "list", "--limit", "5000")) == 1201


def test_closed_channels_are_listed_with_their_causes(cli: Cli) -> None:
    cli.plane.tell(closed_row("0-1-1", "frame_too_large", detail="2000 bytes, the limit is 1000"))
    cli.plane.tell(closed_row("0-1-2", "idle"))
    assert "frame_too_large" in cli("channels", "list", "--closed").stdout
    (row,) = cli.json("channels", "list", "--closed", "--filter", "cause=idle")
    assert (row["id"], row["close"]["cause"]) == ("0-1-2", "CAUSE_IDLE")


def test_describe_shows_an_open_and_a_closed_channel(cli: Cli) -> None:
    text = cli("channels", "describe", "0-1-7").stdout
    assert "TLSv1.3 TLS_AES_256_GCM_SHA384" in text
    assert "3 frames, 300 B" in text
    cli("channels", "close", "0-1-7", "--reason", "stuck client")
    text = cli("channels", "describe", "0-1-7").stdout
    assert ("cause" in text, "admin" in text, "stuck client" in text) == (True, True, True)


def test_mute_returns_what_is_in_force_and_names_the_reason(cli: Cli) -> None:
    result = cli("channels", "mute", "0-1-7", "--reason", "incident 7")
    assert (result.exit_code, result.stdout.split()) == (0, ["ID", "RESULT", "0-1-7", "muted"])
    assert result.stderr.splitlines()[0] == "framegate: 1 channel muted"
    assert result.stderr.splitlines()[1].startswith("framegate: a client that connects again is not muted; ")
    assert "admin" in cli("channels", "list", "--filter", "listener=kafka").stdout
    assert cli.json("channels", "unmute", "--filter", "listener=kafka") == {"affected": ["0-1-7"], "missing": []}
    assert cli.plane.audits[0]["client"].startswith("framegate cli, ")


VERBS = (("mute", "muted"), ("unmute", "unmuted"), ("close", "closed"))


@pytest.mark.parametrize(("verb", "done"), VERBS)
def test_a_change_as_json_is_one_document_even_when_nobody_was_open(cli: Cli, verb: str, done: str) -> None:
    result = cli("channels", verb, "0-1-7", "0-1-9", "--reason", "x", "--output", "json")
    assert json.loads(result.stdout) == {"affected": ["0-1-7"], "missing": ["0-1-9"]}
    assert (result.exit_code, result.stderr) == (3, f"framegate: 1 channel {done}, 1 not open: 0-1-9\n")
    result = cli("channels", verb, "0-1-9", "0-1-5", "0-1-9", "--reason", "x", "--output", "json")
    assert json.loads(result.stdout) == {"affected": [], "missing": ["0-1-9", "0-1-5"]}
    assert (result.exit_code, result.stderr) == (3, f"framegate: 0 channels {done}, 2 not open: 0-1-9, 0-1-5\n")


@pytest.mark.parametrize(("verb", "done"), VERBS)
def test_a_filter_that_matches_nothing_is_no_failure_and_a_wrong_one_is(cli: Cli, verb: str, done: str) -> None:
    cli.plane.drop("1-1-8")
    result = cli("channels", verb, "--filter", "listener=plain", "--reason", "x")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"framegate: no open channels match; none was {done}\n"
    assert cli.json("channels", verb, "--filter", "listener=plain", "--reason", "x") == {"affected": [], "missing": []}
    result = cli("channels", verb, "--filter", "listner=plain", "--reason", "x", "--output", "json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("framegate: --filter: character 1: there is no field listner; the fields are listener, ")


def test_an_empty_list_says_so_and_is_an_empty_list(cli: Cli) -> None:
    cli.plane.drop("1-1-8")
    for words, said in (
        (("--filter", "listener=plain"), "no open channels match"),
        (("--closed",), "no closed channels"),
        (("--closed", "--filter", "cause=idle"), "no closed channels match"),
    ):
        result = cli("channels", "list", *words)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"framegate: {said}\n")
        result = cli("channels", "list", *words, "--output", "json")
        assert (json.loads(result.stdout), result.stderr) == ([], "")
    cli.plane.drop("0-1-7")
    assert cli("channels", "list").stderr == "framegate: no open channels\n"


def test_a_list_that_is_cut_says_so(cli: Cli) -> None:
    result = cli("channels", "list", "--limit", "1")
    assert (len(result.stdout.splitlines()), result.stderr) == (2, "framegate: more open channels exist than --limit 1\n")
    result = cli("channels", "list", "--limit", "1", "--sort", "held")
    assert (len(result.stdout.splitlines()), result.stderr) == (2, "framegate: the first 1 of 2 open channels\n")
    cli.plane.tell(closed_row("0-1-1", "idle", client_id="billing-7"))
    cli.plane.tell(closed_row("0-1-2", "admin"))
    result = cli("channels", "list", "--closed", "--limit", "1", "--sort", "cause", "--columns", "id,cause,client_id,age,waiting,detail")
    assert (result.stdout.splitlines()[1].split()[:2], result.stderr) == (["0-1-2", "admin"], "framegate: the first 1 of 2 closed channels\n")
    result = cli("channels", "list", "--limit", "2")
    assert (len(result.stdout.splitlines()), result.stderr) == (3, "")


@pytest.mark.parametrize(
    "words",
    [
        ("mute", "0-1-7"),
        ("mute", "--reason", "x"),
        ("close", "0-1-7", "--filter", "listener=kafka"),
        ("throttle", "0-1-7"),
        ("list", "--listener", "kafka"),
        ("list", "--columns", "id,colour"),
        ("describe", "seven"),
        ("list", "--cause", "idle"),
    ],
)
def test_wrong_usage_exits_with_2_and_asks_nothing(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli("channels", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert cli.plane.asked == []


def test_a_list_that_is_watched_is_made_again_until_it_is_interrupted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", sleep)
    result = cli("channels", "list", "--watch", "3s")
    assert (result.exit_code, naps, result.stdout.count("LISTENER")) == (130, [3.0, 3.0], 2)


def test_a_throttle_is_shown_kept_and_undone(cli: Cli) -> None:
    words = ("--request-rate", "1MiB", "--standing", "--ttl", "10m", "--reason", "slow")
    result = cli("channels", "throttle", "--filter", "listener=kafka", *words)
    assert result.stderr.splitlines() == [
        "framegate: 1 channel throttled",
        "framegate: action 1 is kept: `framegate channels actions` lists it, `framegate channels undo 1` ends it",
    ]
    assert "throttle            1 MiB/s / -" in cli("channels", "describe", "0-1-7").stdout
    line = cli("channels", "actions").stdout.splitlines()[1]
    assert line.split()[:4] == ["1", "throttle", "listener=kafka", "yes"]
    assert "1 MiB/s / -" in line
    assert cli("channels", "undo", "1").stderr == "framegate: action 1 is undone\n"
    assert (cli("channels", "actions").stderr, cli("channels", "undo", "1").exit_code) == ("framegate: no actions are kept\n", 3)


def test_a_dry_run_and_a_bound_change_nothing(cli: Cli) -> None:
    result = cli("channels", "close", "--filter", "listener=*", "--dry-run")
    assert result.stdout.split() == ["ID", "RESULT", "0-1-7", "would", "be", "closed", "1-1-8", "would", "be", "closed"]
    assert result.stderr.splitlines()[:2] == ["framegate: nothing was changed: --dry-run", "framegate: 2 channels would be closed"]
    result = cli("channels", "close", "--filter", "listener=*", "--max-affected", "1")
    assert result.exit_code == 1
    assert "2 channels would be affected, and max_affected is 1: nothing is changed (TOO_MANY_AFFECTED)" in result.stderr
    assert len(cli.json("channels", "list")) == 2
