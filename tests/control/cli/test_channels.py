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
    (row,) = cli.json("channels", "list", "--closed", "--cause", "idle")
    assert (row["id"], row["close"]["cause"]) == ("0-1-2", "CAUSE_IDLE")


def test_what_went_with_a_processor_is_shown_as_not_known(cli: Cli) -> None:
    unknown = {"request": None, "response": None}
    cli.plane.tell(closed_row("0-1-1", "processor_died", frames=unknown, bytes=unknown, lost={"bytes": None, **unknown}))
    assert cli("channels", "list", "--closed").stdout.splitlines()[1].split()[5:8] == ["?", "?", "?"]
    assert "unknown" in cli("channels", "describe", "0-1-1").stdout
    (row,) = cli.json("channels", "list", "--closed")
    assert ("request" in row, "lost_bytes" in row["close"]) == (False, False)


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
        (("--closed", "--cause", "idle"), "no closed channels match"),
    ):
        result = cli("channels", "list", *words)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"framegate: {said}\n")
        result = cli("channels", "list", *words, "--output", "json")
        assert (json.loads(result.stdout), result.stderr) == ([], "")
    cli.plane.drop("0-1-7")
    assert cli("channels", "list").stderr == "framegate: no open channels\n"


def test_a_list_that_is_cut_says_so(cli: Cli) -> None:
    result = cli("channels", "list", "--limit", "1")
    assert (len(result.stdout.splitlines()), result.stderr) == (2, "framegate: more channels exist than --limit 1\n")
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
        ("list", "--closed", "--filter", "age>1s"),
        ("list", "--columns", "id,colour"),
        ("describe", "seven"),
        ("list", "--cause", "idle"),
        ("list", "--closed", "--cause", "boredom"),
    ],
)
def test_wrong_usage_exits_with_2_and_asks_nothing(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli("channels", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert cli.plane.asked == []
