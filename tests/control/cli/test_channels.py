"""``framegate channels``."""

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
    (row,) = cli.json("channels", "list", "--listener", "plain")
    assert (row["id"], row["state"], row["request"], row["pending_send_bytes"]) == (
        "1-1-8",
        "STATE_OPEN",
        {"frame_count": 3, "total_bytes": 300},
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
    cli.plane.tell(closed_row("0-1-1", "processor_died", frames=unknown, bytes=unknown, lost={"bytes": None}))
    assert cli("channels", "list", "--closed").stdout.splitlines()[1].split()[5:8] == ["?", "?", "?"]
    assert "not known" in cli("channels", "describe", "0-1-1").stdout
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
    assert (result.exit_code, result.stdout.split()) == (0, ["ID", "0-1-7"])
    assert "admin" in cli("channels", "list", "--listener", "kafka").stdout
    assert cli.json("channels", "unmute", "--listener", "kafka") == {"affected": ["0-1-7"], "missing": []}
    assert cli.plane.audits[0]["client"].startswith("framegate cli, ")


def test_a_channel_that_is_not_open_is_told_and_exits_with_3(cli: Cli) -> None:
    result = cli("channels", "mute", "0-1-7", "0-1-9", "--reason", "x")
    assert (result.exit_code, "0-1-7" in result.stdout, "not open: 0-1-9" in result.stderr) == (3, True, True)
    result = cli("channels", "describe", "0-1-9")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "", "framegate: there is no channel '0-1-9' (CHANNEL_NOT_FOUND)\n")


@pytest.mark.parametrize(
    "words",
    [
        ("mute", "0-1-7"),
        ("mute", "--reason", "x"),
        ("close", "0-1-7", "--listener", "kafka"),
        ("describe", "seven"),
        ("list", "--cause", "idle"),
        ("list", "--closed", "--cause", "boredom"),
    ],
)
def test_wrong_usage_exits_with_2_and_asks_nothing(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli("channels", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert cli.plane.asked == []
