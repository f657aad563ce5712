"""Shipping: what reaches the store, in which order, and what is said about it."""

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.consumer import read_consumers
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.log_reader import segments
from framegate.proxy.tap.shipper import CONSUMER, Told
from framegate.proxy.tap.store import AbsentError, StoreError
from tests.fakes.kept_tap import HOUR_NS, START, in_segments
from tests.fakes.s3 import S3
from tests.fakes.shipped import MINUTE_NS, FaultyStore, ShippedTap

S = 1_000_000_000


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[ShippedTap]:
    (tmp_path / "tap").mkdir()
    made = ShippedTap(tmp_path / "tap")
    yield made
    made.leave()


def test_the_store_gives_the_same_verdict_as_the_directory(shipped: ShippedTap) -> None:
    ended, died = in_segments(shipped.tap, 4), in_segments(shipped.tap, 3, boot_id="b1", slot=1)
    shipped.tap.end(ended)
    shipped.die(died, 3)
    shipped.leave()
    assert shipped.look()
    assert verify(shipped.root) == verify(str(shipped.folder))
    assert shipped.shipped.stopped


def test_nothing_is_sent_twice_also_after_a_restart_that_remembers_nothing(shipped: ShippedTap) -> None:
    processor = in_segments(shipped.tap, 4)
    shipped.look()
    assert shipped.shipper.sent == 3, "the last segment is being written"
    shipped.look()
    shipped.restart()
    shipped.look()
    assert shipped.shipper.sent == 0
    shipped.tap.end(processor)
    shipped.look()
    assert shipped.shipper.sent == len(segments(str(shipped.folder), processor.stream)) - 3


@pytest.mark.parametrize("when", ["create", "created", "replace", "replaced"])
@pytest.mark.parametrize("number", [0, 1])
def test_after_an_end_anywhere_the_next_shipper_completes_the_work(shipped: ShippedTap, when: str, number: int) -> None:
    shipped.tap.end(in_segments(shipped.tap, 3))
    shipped.store.faults = {when: [None] * number + [StoreError("the store refuses")]}
    refused = number == 0 or when.startswith("create")
    if refused:
        with pytest.raises(StoreError):
            shipped.look()
        assert when == "replaced" or shipped.verify()[1].complete is False
    shipped.store.faults.clear()
    shipped.restart()
    assert shipped.look()
    assert verify(shipped.root).rows == verify(str(shipped.folder)).rows
    assert not verify(shipped.root).faults


def test_an_object_that_is_not_what_was_sent_is_sent_again(shipped: ShippedTap) -> None:
    shipped.tap.end(in_segments(shipped.tap, 3))
    shipped.store.faults = {"replace": [StoreError("killed")]}
    with pytest.raises(StoreError):
        shipped.look()
    cut, garbled, *_ = shipped.objects()
    whole = [path.read_bytes() for path in (cut, garbled)]
    cut.write_bytes(whole[0][:-1])
    garbled.write_bytes(bytes(len(whole[1])))
    shipped.restart()
    shipped.look()
    assert [path.read_bytes() for path in (cut, garbled)] == whole
    assert shipped.shipper.sent == 2


def test_what_the_store_garbles_on_the_way_is_not_taken_for_shipped(shipped: ShippedTap) -> None:
    shipped.tap.end(in_segments(shipped.tap, 1))

    def garble() -> None:
        for path in shipped.objects():
            path.write_bytes(b"")

    shipped.store.faults = {"created": [garble, garble]}
    with pytest.raises(StoreError, match="its CRC differs"):
        shipped.look()
    assert not read_ledger(shipped.root).present


def test_a_ledger_that_the_store_takes_cut_off_or_whose_answer_is_lost_is_whole_in_the_end(tmp_path: Path, s3: S3) -> None:
    """Without that, a node's last one would stay as it is, and the next shipper would take it for damaged."""
    shipped = ShippedTap(tmp_path / "tap", url=s3.url)
    shipped.tap.end(in_segments(shipped.tap, 2))
    shipped.look()
    shipped.leave()
    left: list[int] = []
    s3.fault = lambda method, path: left.pop() if method == "PUT" and path.endswith("_ledger.jsonl") and left else None
    for kept in (0, 1, 50, 99):
        for attempt in range(2):
            left[:] = [kept] * (2 - attempt)
            if attempt:
                assert shipped.look()
            else:
                with pytest.raises(StoreError, match=r"_ledger\.jsonl is not what was sent"):
                    shipped.look()
            assert not left
            assert shipped.verify()[1].complete is bool(attempt), (kept, attempt)
    s3.refuses_done = True
    for times in (1, 2):
        left[:] = [503] * times
        assert shipped.look(), "nobody else has replaced it"
    assert shipped.verify()[1].complete


def test_what_is_sent_late_and_cut_off_replaces_no_segment_that_was_compared(tmp_path: Path, s3: S3) -> None:
    """A shipper stands still within a request, and dies behind it. The next one has sent the segment meanwhile."""
    shipped = ShippedTap(tmp_path / "tap", url=f"{s3.url}/late")
    shipped.tap.end(in_segments(shipped.tap, 1))
    shipped.leave()
    first, *_ = segments(str(shipped.folder), "edge.0.b0")
    path = f"/taps/production/late/edge/edge.0.b0/{Path(first.path).name}"
    s3.put(path, b"garbled")
    late, sent = threading.Event(), threading.Event()

    def fault(method: str, asked: str) -> int | None:
        if (method, asked) != ("PUT", path) or late.is_set():
            return None
        late.set()
        assert sent.wait(30)
        return 7

    s3.fault = fault
    former = shipped.shipper
    shipped.store.faults = {"created": [StoreError("killed")]}
    with ThreadPoolExecutor() as executor:
        killed = executor.submit(former.look, None, last=True)
        assert late.wait(30)
        shipped.store = FaultyStore(shipped.root)
        shipped.restart()
        assert shipped.look()
        assert shipped.verify()[1].complete
        sent.set()
        with contextlib.suppress(StoreError):
            killed.result(30)
    assert shipped.verify()[1].complete
    assert shipped.store.read(f"edge.0.b0/{Path(first.path).name}")[0] == Path(first.path).read_bytes()


def test_of_two_shippers_one_is_told_and_nothing_is_lost(shipped: ShippedTap) -> None:
    processor = in_segments(shipped.tap, 3)
    shipped.look()
    first = shipped.shipper
    shipped.restart()
    shipped.look()
    shipped.tap.end(processor)
    with pytest.raises(StoreError, match="another framegate"):
        first.look(None, last=True)
    assert first.look(None, last=True), "the next time it takes over"
    assert verify(shipped.root).rows == verify(str(shipped.folder)).rows


def test_two_logs_under_one_name_are_not_complete_while_both_are_shipped(shipped: ShippedTap, tmp_path: Path) -> None:
    """One does not know which streams of the other began meanwhile."""
    (tmp_path / "other").mkdir()
    other = ShippedTap(tmp_path / "other")
    other.url, other.root, other.store = shipped.url, shipped.root, shipped.store
    for number, each in enumerate((shipped, other)):
        each.now_ns = START + 2 * MINUTE_NS
        each.restart()
        each.tap.end(in_segments(each.tap, 2, boot_id=f"b{number}"))
        each.look({})

    def look(each: ShippedTap, later_s: float) -> int:
        """Until when the node is complete, after a time and a pass."""
        for one in (shipped, other):
            one.later(later_s)
        with contextlib.suppress(StoreError):
            each.look({})
        return shipped.verify()[0].until_ns

    known_ns = shipped.now_ns
    other.tap.end(in_segments(other.tap, 4, boot_id="b9"))  # its shipper is slow
    for number in range(12):
        assert look(other if number % 4 > 1 else shipped, 0.5) == known_ns, number
    other.leave()
    assert [look(shipped, later_s) for later_s in (0.5, 0.5, 2.9)] == [known_ns] * 3
    assert look(shipped, 0.2) == shipped.now_ns, "the other one has not replaced it for three intervals"


def test_a_bucket_that_is_missing_is_not_taken_for_a_segment_that_retention_took(shipped: ShippedTap) -> None:
    shipped.tap.end(in_segments(shipped.tap, 2))
    shipped.store.faults = {"create": [AbsentError("no such bucket")]}
    with pytest.raises(AbsentError):
        shipped.look()
    assert not read_ledger(shipped.root).present


def test_what_retention_takes_meanwhile_is_a_line_of_the_ledger(shipped: ShippedTap) -> None:
    shipped.tap.end(in_segments(shipped.tap, 4))
    shipped.store.faults = {"create": [lambda: shipped.tap.keep(14_000)]}
    assert shipped.look()
    _, verdict, _ = shipped.verify()
    assert not verdict.faults
    assert "cut" in {row.state for row in verdict.rows}
    assert shipped.verify()[2][0].state != "complete"


def test_deleted_after_it_was_shipped_is_not_lost(shipped: ShippedTap) -> None:
    """Also when the node's ledger has dropped the stream."""
    stream = in_segments(shipped.tap, 3)
    shipped.tap.end(stream)
    shipped.look()
    shipped.tap.take(stream.stream)
    shipped.look()
    shipped.tap.ledger.compact({}, START + HOUR_NS)
    assert not shipped.tap.ledger.ledger.streams
    shipped.look()
    shipped.leave()
    shipped.look()
    _, verdict, found = shipped.verify()
    assert (verdict.faults, [minute.state for minute in found]) == ([], ["complete"] * 3)


def test_dropped_before_it_was_shipped_is_lost(shipped: ShippedTap) -> None:
    shipped.look()
    stream = in_segments(shipped.tap, 3)
    shipped.tap.end(stream)
    shipped.tap.take(stream.stream)
    shipped.tap.ledger.compact({}, START + HOUR_NS)
    shipped.tap.end(in_segments(shipped.tap, 3, boot_id="b1"))
    shipped.leave()
    shipped.look()
    assert {minute.state for minute in shipped.verify()[2]} == {"lost"}


def test_another_log_of_the_node_leaves_the_former_one_in_the_store(shipped: ShippedTap, tmp_path: Path) -> None:
    """A volume was lost; its stream has no end and never will."""
    in_segments(shipped.tap, 3)
    shipped.look()
    (tmp_path / "other").mkdir()
    other = ShippedTap(tmp_path / "other")
    other.url, other.root, other.store = shipped.url, shipped.root, shipped.store
    other.restart()
    other.tap.end(in_segments(other.tap, 2, boot_id="b1"))
    other.look()
    other.leave()
    other.look()
    node, verdict, found = other.verify()
    assert (verdict.faults, node.streams, node.written) == ([], 2, 1)
    assert {minute.state for minute in found} == {"open"}, "nobody knows how the former stream ended"


def test_registers_as_a_consumer_once_the_store_has_it(shipped: ShippedTap) -> None:
    processor = in_segments(shipped.tap, 3)
    shipped.restart(register=True)
    shipped.store.faults = {"create": [None, StoreError("refused")], "replace": [StoreError("refused")]}
    for expected in ({}, {processor.stream: segments(str(shipped.folder), processor.stream)[-1].base}):
        with pytest.raises(StoreError):
            shipped.look()
        assert read_consumers(str(shipped.folder)).offsets[CONSUMER] == expected


def test_bytes_are_sent_no_faster_than_the_bandwidth(shipped: ShippedTap) -> None:
    shipped.tap.end(in_segments(shipped.tap, 3))
    shipped.restart(bandwidth=1000)
    shipped.look()
    assert sum(shipped.slept) > 0
    total = sum(segment.size for segment in segments(str(shipped.folder), "edge.0.b0"))
    assert shipped.shipper._free_s - shipped.now_s == pytest.approx(total / 1000, rel=0.5)


def test_the_ledger_is_replaced_once_in_an_interval(shipped: ShippedTap) -> None:
    in_segments(shipped.tap, 2)
    assert [shipped.shipper.look(None) for _ in range(2)] == [True, False]
    shipped.later(0.999)
    assert not shipped.shipper.look(None)
    shipped.later(0.001)
    assert shipped.shipper.look(None)


def test_a_folder_that_has_not_changed_is_not_listed(shipped: ShippedTap, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = in_segments(shipped.tap, 3)
    shipped.look()
    folder = shipped.folder / processor.stream
    os.utime(folder, ns=(0, 0))  # long ago
    shipped.look()
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail(f"{path} was listed"))
    shipped.look({processor.stream: (shipped.now_ns, 0)})
    assert shipped.until(processor.stream) == 2, "the open segment is known"
    monkeypatch.undo()
    shipped.tap.end(processor)
    shipped.look()
    assert shipped.shipped.streams[processor.stream][0] == read_ledger(str(shipped.folder)).streams[processor.stream].end


def test_while_much_is_sent_the_node_is_heard(shipped: ShippedTap) -> None:
    shipped.look()
    in_segments(shipped.tap, 4)
    shipped.later(10)
    shipped.store.faults = {"create": [None, None, StoreError("refused")]}
    with pytest.raises(StoreError):
        shipped.look()
    assert shipped.shipped.heard_ns > START
    assert shipped.shipped.streams["edge.0.b0"][0] > 0
    assert shipped.verify()[2][0].state == "open"


# --- until when a stream is complete ---------------------------------------------------------------------------------------------


def test_without_word_from_control_nothing_is_known_of_a_stream_without_an_end(shipped: ShippedTap) -> None:
    in_segments(shipped.tap, 5)
    shipped.look()
    shipped.later(100)
    shipped.look()
    assert shipped.until("edge.0.b0") == 0
    assert {minute.state for minute in shipped.verify()[2]} == {"open"}


def test_an_idle_stream_is_complete_up_to_what_is_not_shipped(shipped: ShippedTap) -> None:
    processor = in_segments(shipped.tap, 5)  # the last minute's block is in the open segment
    shipped.look({processor.stream: (shipped.now_ns - 5, 0)})
    assert shipped.until(processor.stream) == 4
    processor.writer.thread.seal(False)
    shipped.later(10)
    idle_ns = shipped.now_ns - 5
    shipped.look({processor.stream: (idle_ns, 0)})
    assert shipped.shipped.streams[processor.stream][1] == idle_ns


def test_a_block_of_a_later_window_closes_those_before(shipped: ShippedTap) -> None:
    processor = in_segments(shipped.tap, 5)
    base = shipped.now_ns = START + 3 * MINUTE_NS - 90 * S
    shipped.restart()
    facts = {processor.stream: (0, 0)}
    shipped.now_ns = base + 300 * S
    shipped.now_s += 300
    shipped.look(facts)
    assert shipped.until(processor.stream) == 0, "what control says may be older than the block"
    shipped.later(1.999)
    shipped.look(facts)
    assert shipped.until(processor.stream) == 0
    shipped.later(0.001)
    shipped.look(facts)
    assert shipped.until(processor.stream) == 3, "the block of minute 3 is shipped"


@pytest.mark.parametrize(("before_s", "minute"), [(5.001, 3), (5.0, 0), (-100, 0)])
def test_after_a_failed_write_a_block_closes_nothing(shipped: ShippedTap, before_s: float, minute: int) -> None:
    processor = in_segments(shipped.tap, 5)
    shipped.now_ns = START + MINUTE_NS
    shipped.restart()
    shipped.later(300)
    facts = {processor.stream: (0, START + 3 * MINUTE_NS - int(before_s * S))}
    shipped.look(facts)
    shipped.later(2)
    shipped.look(facts)
    assert shipped.until(processor.stream) == minute


def test_a_clock_that_is_set_back_takes_back_what_was_said(shipped: ShippedTap) -> None:
    processor = in_segments(shipped.tap, 5)
    processor.writer.thread.seal(False)
    shipped.now_ns = START + 10 * MINUTE_NS
    shipped.restart()
    shipped.look({processor.stream: (shipped.now_ns, 0)})
    assert shipped.until(processor.stream) == 10
    shipped.later(10, clock=-8 * 60)
    assert shipped.shipper.look(Told(shipped.now_ns, shipped.now_s, {}), last=True)
    assert shipped.until(processor.stream) <= 2
    for number in range(6):
        processor.block([b"x"], at_ns=START + 2 * MINUTE_NS + number * MINUTE_NS)
    processor.writer.thread.seal(False)
    shipped.later(5.5 * 60)
    for _ in range(2):
        shipped.look({processor.stream: (0, 0)})
        shipped.later(2)
    assert shipped.until(processor.stream) <= 2, "before the clock has passed its former time, a block proves nothing"


def test_a_shipper_goes_on_from_what_the_store_says(shipped: ShippedTap) -> None:
    processor = in_segments(shipped.tap, 5)
    shipped.look({processor.stream: (shipped.now_ns, 0)})
    shipped.restart()
    shipped.look()
    assert shipped.until(processor.stream) == 4


def test_a_stream_that_the_ledger_does_not_know_yet_keeps_the_node_open(shipped: ShippedTap) -> None:
    shipped.tap.end(in_segments(shipped.tap, 2))
    shipped.look({"edge.1.b9": (0, 0)})
    assert shipped.verify()[0].until_ns == 0
    assert {minute.state for minute in shipped.verify()[2]} == {"open"}


def test_a_directory_without_a_ledger_proves_nothing(shipped: ShippedTap) -> None:
    shipped.tap.end(in_segments(shipped.tap, 2))
    (shipped.folder / "_ledger.jsonl").unlink()
    shipped.leave()
    shipped.look()
    assert not shipped.verify()[1].complete
    assert any("lost" in fault for fault in shipped.verify()[1].faults)
