"""The level of the log, and its rows: as they are kept, as they are written, and from where one was."""

import json
import threading
import time

import pytest

from framegate.control.events.subscription import MAX_EVENTS
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


def test_the_rows_that_are_kept_are_lines_as_in_the_log(cli: Cli) -> None:
    assert (cli("events").stdout, cli("events").exit_code) == ("", 0)
    cli.plane.written.publish({"event": "closed", "id": "0-1-7", "cause": "peer_reset"})
    cli.plane.written.publish({"event": "processor_died", "slot": 1}, level="error")
    first, second = cli("events").stdout.splitlines()
    assert first.endswith("INFO    closed A connection has ended. id=0-1-7 cause=peer_reset")
    assert second.endswith("ERROR   processor_died A processor ended unexpectedly. slot=1")
    (line,) = cli("events", "--filter", "level=error", "--output", "json").stdout.splitlines()
    assert {**json.loads(line), "time": ""} == {"time": "", "level": "error", "event": "processor_died", "slot": 1}


def test_follow_ends_with_the_proxy_and_says_how_to_continue(cli: Cli) -> None:
    def write() -> None:
        while not cli.plane.written.subscriptions:
            time.sleep(0.001)
        cli.plane.written.publish({"event": "closed", "id": "0-1-7"})
        cli.plane.written.close()

    thread = threading.Thread(target=write)
    thread.start()
    done = cli("events", "--follow")
    thread.join()
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 1)
    ended, note = done.stderr.splitlines()
    assert ended == "framegate: framegate has ended"
    for _ in range(MAX_EVENTS + 1):
        cli.plane.written.publish({"event": "closed"})
    again = cli("events", "--after", note.split()[-1])
    assert "1 row before these are not kept any more" in again.stderr
    assert len(again.stdout.splitlines()) == MAX_EVENTS
    assert "these are the rows of the new process" in cli("events", "--after", "00000000-5").stderr


def test_a_bad_filter_and_a_bad_token_are_faults_of_usage(cli: Cli) -> None:
    for words, text in (
        (("--filter", "colour=red"), "--filter: character 1: there is no field colour; the fields are event, level, address"),
        (("--after", "7"), "--after: is not one that a response gave"),
    ):
        done = cli("events", *words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert text in done.stderr
