"""The loop in the test's own process: what an error costs, and that the end loses nothing."""

import time
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.cells import CellWriter, State
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.server.link import complete
from framegate.proxy.tap.gap import Gap
from framegate.proxy.tap.record import REASON_QUEUE_FULL
from tests.fakes.disk import FakeDisk
from tests.fakes.loop import Act, LoopBench
from tests.fakes.tap_read import read_ends

STOP = {"type": "stop"}


def fail() -> None:
    raise RuntimeError("a bug")


# What an error costs.


def test_a_timer_that_raises_is_logged_and_counted_and_the_loop_goes_on() -> None:
    with LoopBench() as bench:
        bench.connect()
        bench.when_open(1, fail)
        bench.when_open(1, lambda: bench.when(lambda: bench.cells.cell("framegate.processor.errors", "timer"), lambda: bench.send(STOP, STOP)))
        assert bench.loop.run([])
        bench.end()
        (row,) = bench.of("log")
        assert (row["level"], row["event"]) == ("error", "internal_error")
        at = row["fields"].pop("at")
        assert row["fields"] == {"place": "timer", "count": 1, "error": "RuntimeError: a bug"}
        assert at.startswith("test_loop_ends.py:")
        assert [closed["row"]["cause"] for closed in bench.of("closed")] == ["drained"]


def test_errors_without_end_are_counted_and_do_not_fill_the_log() -> None:
    with LoopBench() as bench:
        fired: list[int] = []

        def again() -> None:
            fired.append(1)
            if len(fired) < 500:
                bench.selector.call_at(0, timer)
            else:
                bench.send(STOP, STOP)
            raise RuntimeError("a bug")

        timer = Act(again)
        bench.selector.call_at(0, timer)
        assert bench.loop.run([])
        bench.end()
        assert bench.cells.cell("framegate.processor.errors", "timer") == 500
        assert len(bench.of("log")) <= 4
        assert sum(row["fields"]["count"] for row in bench.of("log")) == 500


def test_counts_that_cannot_be_published_do_not_end_the_loop() -> None:
    class Failing(CellWriter):
        failures = 3

        def publish(self, image: Any) -> None:
            if self.failures:
                self.failures -= 1
                raise RuntimeError("a bug")
            super().publish(image)

    with LoopBench(cell_writer=Failing) as bench:
        bench.when(lambda: bench.cells.cell("framegate.processor.errors", "loop") == 3, lambda: bench.send(STOP, STOP))
        assert bench.loop.run([])
        bench.end()
        assert {row["fields"]["error"] for row in bench.of("log")} == {"RuntimeError: a bug"}


def test_an_error_of_the_selector_itself_ends_the_loop_and_loses_nothing() -> None:
    with LoopBench() as bench:
        for _ in range(3):
            bench.connect()
        bench.when_open(3, lambda: bench.selector._epoll.close())
        assert not bench.loop.run([])
        bench.end()
        assert len(bench.of("closed")) == 3
        assert bench.cells.cell("framegate.connection.closed", "plain", "drained", "internal") == 3
        assert bench.cells.state == State.STOPPED
        assert "loop" in {row["fields"]["place"] for row in bench.of("log")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("kind", "text"), [(RuntimeError, "RuntimeError: a bug"), (SystemExit, "RuntimeError: the writer thread had ended")])
def test_a_tap_thread_that_raises_or_dies_loses_one_block_says_so_and_goes_on(tmp_path: Path, kind: type[BaseException], text: str) -> None:
    class Failing(FakeDisk):
        def write(self, fd: int, parts: list[Any], position: int) -> int:
            if self.failures:
                self.failures -= 1
                raise kind("a bug")
            return super().write(fd, parts, position)

        failures = 1

    with LoopBench(str(tmp_path), Failing()) as bench:
        assert bench.tap is not None
        client = bench.connect()
        bench.when_open(1, lambda: client.sendall(b"\0\0\0\1x"))
        bench.when(lambda: bench.cells.cell("framegate.tap.flushed"), lambda: client.sendall(b"\0\0\0\1y"))
        tapped = [("framegate.tap.frames", "request"), ("framegate.tap.dropped", "disk_error")]
        bench.when(lambda: [bench.cells.cell(*name) for name in tapped] == [1, 1], lambda: bench.send(STOP, STOP))
        assert bench.loop.run([])
        bench.end()
        assert bench.cells.cell("framegate.tap.matched") == bench.cells.cell("framegate.tap.flushed") == 2
        (row,) = bench.of("log")
        assert row["fields"] == {"place": "tap", "count": 1, "error": text, "at": ""}


# The end.


@pytest.mark.parametrize("how", ["a second stop", "a third SIGTERM"])
def test_a_forced_end_does_without_courtesy_and_every_connection_has_its_row(how: str) -> None:
    """The clients never end their side, so that the courtesy would last its second."""
    with LoopBench() as bench:
        for _ in range(3):
            bench.connect()
        bench.when_open(3, lambda: bench.send(STOP, STOP) if how == "a second stop" else bench.signals.send(b"\x0f\x0f\x0f"))
        states: list[str] = []
        bench.when(lambda: states.append("loop") or len(states) > 1000, fail)
        assert bench.loop.run([])
        bench.end()
        assert {row["row"]["cause"] for row in bench.of("closed")} == {"drained"}
        assert len(bench.of("closed")) == 3
        assert bench.cells.cell("framegate.processor.errors", "timer") == 0, "it waited for a second"


def test_work_that_the_end_cuts_short_is_answered_and_says_what_was_not_done() -> None:
    with LoopBench() as bench:
        for _ in range(30):
            bench.connect()
        ids: list[int] = []

        def ask() -> None:
            ids.extend(bench.relay.pairs.open)
            lists = [{"type": "list", "id": number} for number in range(40)]
            bench.send(*lists, {"type": "mute", "id": 40, "connections": list(ids)}, {"type": "unmute", "id": 41, "connections": [99]}, STOP, STOP)

        bench.when_open(30, ask)
        assert bench.loop.run([])
        bench.end()
        answers = {message["id"]: message for message in bench.read if "id" in message}
        assert sorted(answers) == list(range(42))
        assert answers[39] == {"type": "error", "id": 39, "error": "the processor ends"}
        assert answers[40] == {"type": "result", "id": 40, "affected": [], "missing": ids, "undone": []}
        assert answers[41] == {"type": "result", "id": 41, "affected": [], "missing": [99], "undone": []}
        assert len(bench.of("closed")) == 30


def test_a_segment_of_the_tap_that_somebody_deletes_while_it_is_written_is_a_row(tmp_path: Path) -> None:
    with LoopBench(str(tmp_path)) as bench:
        tap = bench.tap
        assert tap is not None

        def lose() -> None:
            tap.lose(Gap(connection=1, direction=0, reason=REASON_QUEUE_FULL, listener="plain", from_ns=time.time_ns()), 1, 5, time.time_ns())

        def delete() -> None:
            next(tmp_path.glob("*/*.open")).unlink()
            lose()
            bench.when(lambda: bench.cells.cell("framegate.tap.flushed") == 2, lambda: bench.send(STOP, STOP))

        lose()
        bench.when(lambda: bench.cells.cell("framegate.tap.flushed") == 1, delete)
        assert bench.loop.run([])
        bench.end()
        (row,) = bench.of("log")
        assert (row["level"], row["event"]) == ("error", "tap_segment_deleted")
        assert row["fields"] == {"segments": 1, "path": str(tmp_path / "n.0.b" / f"{0:020d}.open")}
        assert [path.name for path in tmp_path.glob("*/*")] != [f"{0:020d}.seg"]


@pytest.mark.parametrize("link", ["up", "gone"])
def test_the_tap_has_the_row_of_every_connection_also_of_those_that_could_not_be_taken_over(tmp_path: Path, link: str) -> None:
    with LoopBench(str(tmp_path)) as bench:
        for _ in range(3):
            bench.connect()
        bench.handover.send(b"5 2 -1 plain 192.0.2.1:7")  # its descriptor is lost
        bench.when_open(3, bench.command.close if link == "gone" else lambda: bench.send(STOP, STOP))
        assert bench.loop.run([])
        bench.end()
        ends = list(read_ends(str(tmp_path)))
        assert [end.pop("tap_rule") for end in ends] == ["all"] * len(ends)
        assert sorted(end["cause"] for end in ends) == ["drained"] * 3 + ["limit"]
        if link == "up":
            for end in ends:
                complete("closed", end)
            rows = {format_connection_id(message["row"].pop("id")): message["row"] for message in bench.of("closed")}
            assert {end["id"]: rows[end["id"]] | {name: end[name] for name in end if name != "id"} for end in ends} == rows
