"""``framegate log``."""

import pytest

from tests.fakes.cli import Cli


def test_get_shows_the_level_and_what_was_dropped(cli: Cli) -> None:
    assert cli("log", "get").stdout == "level info, format json; 7 rows dropped since the start\n"
    found = cli.json("log", "get")
    assert found == {"etag": found["etag"], "level": "LEVEL_INFO", "silenced_events": [], "dropped_row_count": 7, "format": "FORMAT_JSON"}


def test_set_changes_the_level_silences_events_and_has_them_written_again(cli: Cli) -> None:
    shown = cli("log", "set", "--level", "debug", "--event", "closed=off", "--event", "access=off").stdout.splitlines()
    assert shown == ["level debug, format json; 7 rows dropped since the start", "silenced: access, closed"]
    assert cli("log", "set", "--event", "access=on").stdout.splitlines()[1] == "silenced: closed"
    assert cli.plane.levels.silenced == {"closed"}
    assert cli("log", "set", "--event", "closed=off", "--event", "closed=on").stdout.splitlines()[1:] == [], "the last word counts"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give --level, --event or both"),
        (("--event", "closed"), "'closed' is not EVENT=on or EVENT=off: write for example closed=off"),
        (("--event", "=off"), "'=off' is not EVENT=on or EVENT=off"),
        (("--event", "closed=no"), "write for example closed=off"),
        (("--level", "loud"), "'loud' is not one of"),
    ],
)
def test_what_cannot_be_is_a_fault_of_usage(cli: Cli, arguments: tuple[str, ...], text: str) -> None:
    done = cli("log", "set", *arguments)
    assert done.exit_code == 2
    assert text in done.stderr


def test_an_event_that_is_none_is_told_in_words(cli: Cli) -> None:
    for event, text in (("clsoed", "there is no event 'clsoed'"), ("audit", "audit are always written")):
        done = cli("log", "set", "--event", f"{event}=off")
        assert done.exit_code == 2
        assert text in done.stderr
