"""Losses; and streams that are gone, with the real ledger beside the real planner."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from framegate.proxy.pipeline import planner as planner_module
from framegate.proxy.pipeline.loss import LEDGER_STREAM, UNKNOWN_END, DataLossError, Loss, pairs_of
from framegate.proxy.pipeline.planner import Planner
from framegate.proxy.pipeline.position import Position
from framegate.proxy.tap import ledger_writer, record
from framegate.proxy.tap.ledger import LEDGER_NAME, Ledger, StreamRecord
from framegate.proxy.tap.ledger_writer import LedgerWriter
from framegate.proxy.tap.log_reader import end_offset
from tests.fakes.tap_log import FakeProcessor

A, B, C = "edge.0.a", "edge.0.b", "edge.0.c"
NOW_NS = 1_800_000_000_000_000_000
PAIRS = [("main", "request"), ("main", "response")]


def test_a_loss_is_about_what_was_tapped_or_about_anything() -> None:
    ledger = Ledger(True, 2, "", {"a": StreamRecord(1, 5, [("main", "request")]), "b": StreamRecord(2, 6, [])})
    assert pairs_of(ledger, "a") == (("main", "request"),)
    assert pairs_of(ledger, "b") == pairs_of(ledger, "nobody") == ((None, "request"), (None, "response"))


def test_the_error_says_how_to_go_on() -> None:
    assert re.match("stream a is gone. .*--go-on", str(DataLossError("stream a is gone")))


class Tap:
    """A directory with its ledger, as control keeps it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.ledger = LedgerWriter(str(directory))

    def born(self, stream: str) -> None:
        self.ledger.born(stream, PAIRS, NOW_NS)

    def begins(self, stream: str, blocks: int = 2) -> FakeProcessor:
        """A processor of which control knows."""
        self.born(stream)
        processor = FakeProcessor(self.directory, boot_id=stream.rpartition(".")[2], segment_size=1)
        for _ in range(blocks):
            processor.block([bytes(1000)])
        return processor

    def ends(self, stream: str, processor: FakeProcessor) -> int:
        """It ends in order; where."""
        processor.close()
        end = end_offset(str(self.directory), stream)
        self.ledger.ended(stream, end, NOW_NS, settled=True)
        return end

    def takes(self, stream: str, to: int) -> None:
        """Retention takes all of it."""
        self.ledger.deleted(stream, to, NOW_NS)
        shutil.rmtree(self.directory / stream)


@pytest.fixture
def tap(tmp_path: Path) -> Iterator[Tap]:
    made = Tap(tmp_path / "tap")
    yield made
    made.ledger.close()


def new(tap: Tap, *, strict: bool = True, consumer: str = "") -> Planner:
    """A planner that has seen nothing, as after a restart."""
    return Planner(tap.directory, parallelism=1, fail_on_data_loss=strict, consumer=consumer)


def the_losses(tap: Tap, start: Position, end: Position) -> list[Loss]:
    return [part for parts in new(tap, strict=False).partitions(start, end) for part in parts if isinstance(part, Loss)]


def test_a_stream_that_was_read_to_the_end_that_the_ledger_knows_is_no_loss(tap: Tap) -> None:
    end = tap.ends(A, tap.begins(A))
    position = new(tap).advance(Position({A: 0}, 0))
    assert position.streams == {A: end}
    tap.takes(A, end)
    after = new(tap).advance(position)
    assert (after.streams, after.lost, after.ledger) == ({}, {}, 3)
    assert new(tap).advance(after) == after


def test_a_stream_that_went_unread_while_the_job_was_down_is_an_error_and_a_gap_for_who_goes_on(tap: Tap) -> None:
    processor = tap.begins(A)
    start = new(tap).advance(new(tap).first(), 1)
    end = tap.ends(A, processor)
    tap.takes(A, end)
    with pytest.raises(DataLossError, match=rf"edge\.0\.a is gone, it was read up to {start.streams[A]}, its end is {end}\."):
        new(tap).advance(start)
    position = new(tap, strict=False).advance(start)
    (loss,) = the_losses(tap, start, position)
    assert loss._replace(until_ns=0) == Loss(A, start.streams[A], end, record.REASON_VANISHED, NOW_NS, 0, tuple(PAIRS))
    assert position.streams == {}
    assert the_losses(tap, start, Position.decode(position.encode())) == [loss], "a replay finds the same"
    assert new(tap).advance(position) == position, "it is said once"


def test_a_stream_that_came_and_went_unread_is_an_error_and_a_gap_for_who_goes_on(tap: Tap) -> None:
    tap.begins(A)
    start = new(tap).advance(new(tap).first())
    end = tap.ends(B, tap.begins(B))
    tap.takes(B, end)
    with pytest.raises(DataLossError, match=rf"edge\.0\.b is gone, it was read up to 0, its end is {end}\."):
        new(tap).advance(start)
    position = new(tap, strict=False).advance(start)
    assert [loss[:3] for loss in the_losses(tap, start, position)] == [(B, 0, end)]
    assert new(tap).advance(position) == position


def test_streams_that_went_before_the_first_start_are_none_of_ours(tap: Tap) -> None:
    end = tap.ends(A, tap.begins(A))
    tap.takes(A, end)
    cut = tap.begins(B, 3)
    first, second, *_ = sorted((tap.directory / B).iterdir())
    tap.ledger.deleted(B, int(second.stem), NOW_NS)
    first.unlink()
    planner = new(tap)
    for start in (planner.first(), planner.first(from_latest=True), planner.first(since_ns=1)):
        position = new(tap).advance(start)
        assert new(tap).partitions(start, position) is not None
        assert position.lost == {}
    assert cut.stream == B


def test_a_stream_that_somebody_took_before_the_first_start_is_a_loss_of_who_begins_at_the_earliest(tap: Tap) -> None:
    end = tap.ends(A, tap.begins(A))
    tap.begins(B)
    shutil.rmtree(tap.directory / A)
    start = new(tap).first()
    assert start.streams[A] == 0
    with pytest.raises(DataLossError, match=rf"edge\.0\.a is gone, it was read up to 0, its end is {end}"):
        new(tap).advance(start)
    for later in (new(tap).first(from_latest=True), new(tap).first(since_ns=1)):
        assert new(tap).advance(later).lost == {}


def test_a_stream_that_is_born_and_has_nothing_yet_is_not_forgotten(tap: Tap) -> None:
    tap.born(A)
    start = new(tap).first()
    assert (start.streams, start.born, start.ledger) == ({}, (A,), 1)
    assert new(tap).advance(start) == start
    tap.begins(B)
    between = new(tap).advance(start)
    assert between.born == (A,)
    tap.ledger.ended(A, 500, NOW_NS, settled=True)
    with pytest.raises(DataLossError, match=r"edge\.0\.a is gone, it was read up to 0, its end is 500"):
        new(tap).advance(between)
    assert list(new(tap, strict=False).advance(between).lost) == [A]


def test_a_stream_that_never_wrote_anything_is_no_loss(tap: Tap) -> None:
    tap.born(A)
    start = new(tap).first()
    tap.ledger.ended(A, 0, NOW_NS, settled=True)
    tap.begins(B)
    position = new(tap).advance(start)
    assert (position.born, position.lost) == ((), {})


def test_a_live_stream_of_which_retention_took_all_goes_on_where_it_was(tap: Tap) -> None:
    processor = tap.begins(A)
    position = new(tap).advance(new(tap).first())
    for segment in (tap.directory / A).iterdir():
        segment.unlink()
    tap.ledger.deleted(A, position.streams[A], NOW_NS)
    assert new(tap).advance(position) == position
    processor.block([b"more"])
    fresh = new(tap).advance(position)
    assert fresh.streams[A] > position.streams[A]
    assert the_losses(tap, position, fresh) == []


def test_of_a_live_stream_only_what_was_taken_is_lost(tap: Tap) -> None:
    processor = tap.begins(A)
    start = new(tap).first()
    end = new(tap).ends()[A]
    for segment in (tap.directory / A).iterdir():
        segment.unlink()
    tap.ledger.deleted(A, end, NOW_NS)
    with pytest.raises(DataLossError, match="is gone"):
        new(tap).advance(start)
    position = new(tap, strict=False).advance(start)
    assert position.streams == {A: end}
    assert [loss[:3] for loss in the_losses(tap, start, position)] == [(A, 0, end)]
    processor.block([b"more"])
    assert the_losses(tap, position, new(tap).advance(position)) == []


def test_a_stream_that_went_without_a_word_of_the_ledger_is_a_loss_without_an_end(tap: Tap) -> None:
    tap.begins(A)
    position = new(tap).advance(new(tap).first())
    shutil.rmtree(tap.directory / A)
    with pytest.raises(DataLossError, match="its end is unknown"):
        new(tap).advance(position)
    assert new(tap, strict=False).advance(position).lost[A][:2] == (position.streams[A], UNKNOWN_END)


@pytest.mark.parametrize("present", [False, True])
def test_a_stream_that_no_ledger_knows_must_have_been_seen_to_its_end(tap: Tap, present: bool) -> None:
    FakeProcessor(tap.directory, boot_id="a").block([b"x"])
    if not present:
        (tap.directory / LEDGER_NAME).unlink()
    position = Position(new(tap).ends())
    shutil.rmtree(tap.directory / A)
    with pytest.raises(DataLossError, match="its end is unknown"):
        new(tap).advance(position)


def test_the_ledger_forgets_first_what_its_consumers_have_read(tap: Tap) -> None:
    end = tap.ends(A, tap.begins(A))
    position = new(tap).advance(new(tap).first())
    tap.takes(A, end)
    assert tap.ledger.compact({"job": {A: end}}, NOW_NS) == 1
    assert new(tap, consumer="job").advance(position).lost == {}
    with pytest.raises(DataLossError, match="is gone"):
        new(tap).advance(position)


def test_available_now_leaves_what_was_born_later_to_the_next_run(tap: Tap) -> None:
    tap.begins(A)
    planner = new(tap)
    target = planner.target()
    end = tap.ends(B, tap.begins(B))
    tap.takes(B, end)
    position = planner.advance(Position({A: 0}, 1), None, target)
    assert (position.ledger, position.lost) == (1, {})
    with pytest.raises(DataLossError, match=r"edge\.0\.b is gone"):
        new(tap).advance(position)


def test_a_checkpoint_of_version_1_begins_to_count_where_it_is(tap: Tap) -> None:
    end = tap.ends(A, tap.begins(A))
    tap.takes(A, end)
    tap.begins(B)
    position = new(tap).advance(Position({}))
    assert (list(position.streams), position.ledger, position.lost) == ([B], 4, {})


def test_a_stream_that_begins_between_the_two_looks_waits_for_the_next(tap: Tap, monkeypatch: pytest.MonkeyPatch) -> None:
    tap.begins(A)
    planner = new(tap)
    start = planner.advance(planner.first())
    listed = planner_module.streams

    def slow(root: str) -> list[str]:
        found = listed(root)
        if not (tap.directory / B).exists():
            tap.ends(B, tap.begins(B))
        return found

    monkeypatch.setattr(planner_module, "streams", lambda root: [name for name in slow(root) if name == A])
    between = planner.advance(start)
    assert between.lost == {}
    monkeypatch.setattr(planner_module, "streams", listed)
    assert B in planner.advance(between).streams


def harmed(tap: Tap) -> None:
    path = tap.directory / LEDGER_NAME
    path.write_bytes(path.read_bytes().replace(b'"born"', b'"bone"', 1))


def removed(tap: Tap) -> None:
    (tap.directory / LEDGER_NAME).unlink()


def forgetful(tap: Tap) -> None:
    tap.takes(B, tap.ends(B, tap.begins(B)))
    with mock.patch.object(ledger_writer, "KEPT_BYTES", 0):
        assert tap.ledger.compact({"job": {}}, NOW_NS) == 1


@pytest.mark.parametrize(("harm", "words"), [(harmed, "is damaged: line 1"), (removed, "ledger is gone"), (forgetful, "has forgotten streams up to")])
def test_a_ledger_that_no_longer_tells_is_said_once(tap: Tap, harm: object, words: str) -> None:
    assert callable(harm)
    tap.begins(A)
    start = new(tap).advance(new(tap).first())
    harm(tap)
    with pytest.raises(DataLossError, match=words):
        new(tap).advance(start)
    position = new(tap, strict=False).advance(start)
    assert LEDGER_STREAM in position.lost
    assert {(loss.stream, loss.reason) for loss in the_losses(tap, start, position)} >= {(LEDGER_STREAM, record.REASON_VANISHED)}
    assert new(tap).advance(position) == position
