"""Shipping: what reaches the store, in which order, and what is said about it."""

import contextlib
import os
import threading
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


def test_the_store_gives_the_same_verdict_as_the_directory(edge: ShippedTap) -> None:
    ended, died = in_segments(edge.tap, 4), in_segments(edge.tap, 3, boot_id="b1", slot=1)
    edge.tap.end(ended)
    edge.die(died, 3)
    edge.leave()
    assert edge.look()
    assert verify(edge.root) == verify(str(edge.folder))
    assert edge.shipped.stopped


def test_nothing_is_sent_twice_also_after_a_restart_that_remembers_nothing(edge: ShippedTap) -> None:
    processor = in_segments(edge.tap, 4)
    edge.look()
    assert edge.shipper.sent == 3, "the last segment is being written"
    edge.look()
    edge.restart()
    edge.look()
    assert edge.shipper.sent == 0
    edge.tap.end(processor)
    edge.look()
    assert edge.shipper.sent == len(segments(str(edge.folder), processor.stream)) - 3


@pytest.mark.parametrize("when", ["create", "created", "replace", "replaced"])
@pytest.mark.parametrize("number", [0, 1])
def test_after_an_end_anywhere_the_next_shipper_completes_the_work(edge: ShippedTap, when: str, number: int) -> None:
    edge.tap.end(in_segments(edge.tap, 3))
    edge.store.faults = {when: [None] * number + [StoreError("the store refuses")]}
    refused = number == 0 or when.startswith("create")
    if refused:
        with pytest.raises(StoreError):
            edge.look()
        assert when == "replaced" or edge.verify()[1].complete is False
    edge.store.faults.clear()
    edge.restart()
    assert edge.look()
    assert verify(edge.root).rows == verify(str(edge.folder)).rows
    assert not verify(edge.root).faults


def test_an_object_that_is_not_what_was_sent_is_sent_again(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 3))
    edge.store.faults = {"replace": [StoreError("killed")]}
    with pytest.raises(StoreError):
        edge.look()
    cut, garbled, *_ = edge.objects()
    whole = [path.read_bytes() for path in (cut, garbled)]
    cut.write_bytes(whole[0][:-1])
    garbled.write_bytes(bytes(len(whole[1])))
    edge.restart()
    edge.look()
    assert [path.read_bytes() for path in (cut, garbled)] == whole
    assert edge.shipper.sent == 2


def test_what_the_store_garbles_on_the_way_is_not_taken_for_shipped(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 1))

    def garble() -> None:
        for path in edge.objects():
            path.write_bytes(b"")

    edge.store.faults = {"created": [garble, garble]}
    with pytest.raises(StoreError, match="its CRC differs"):
        edge.look()
    assert not read_ledger(edge.root).present


def test_a_ledger_that_the_store_takes_cut_off_or_whose_answer_is_lost_is_whole_in_the_end(tmp_path: Path, s3: S3) -> None:
    """Without that, a node's last one would stay as it is, and the next shipper would take it for damaged."""
    edge = ShippedTap(tmp_path / "tap", url=s3.url)
    edge.tap.end(in_segments(edge.tap, 2))
    edge.look()
    edge.leave()
    left: list[int] = []
    s3.fault = lambda method, path: left.pop() if method == "PUT" and path.endswith("_ledger.jsonl") and left else None
    for kept in (0, 1, 50, 99):
        for attempt in range(2):
            left[:] = [kept] * (2 - attempt)
            if attempt:
                assert edge.look()
            else:
                with pytest.raises(StoreError, match=r"_ledger\.jsonl is not what was sent"):
                    edge.look()
            assert not left
            assert edge.verify()[1].complete is bool(attempt), (kept, attempt)
    s3.refuses_done = True
    for times in (1, 2):
        left[:] = [503] * times
        assert edge.look(), "nobody else has replaced it"
    assert edge.verify()[1].complete


def test_what_is_sent_late_and_cut_off_replaces_no_segment_that_was_compared(tmp_path: Path, s3: S3) -> None:
    """A shipper stands still within a request, and dies behind it. The next one has sent the segment meanwhile."""
    edge = ShippedTap(tmp_path / "tap", url=f"{s3.url}/late")
    edge.tap.end(in_segments(edge.tap, 1))
    edge.leave()
    first, *_ = segments(str(edge.folder), "edge.0.b0")
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
    former = edge.shipper
    edge.store.faults = {"created": [StoreError("killed")]}
    with ThreadPoolExecutor() as executor:
        killed = executor.submit(former.look, None, last=True)
        assert late.wait(30)
        edge.store = FaultyStore(edge.root)
        edge.restart()
        assert edge.look()
        assert edge.verify()[1].complete
        sent.set()
        with contextlib.suppress(StoreError):
            killed.result(30)
    assert edge.verify()[1].complete
    assert edge.store.read(f"edge.0.b0/{Path(first.path).name}")[0] == Path(first.path).read_bytes()


def test_of_two_shippers_one_is_told_and_nothing_is_lost(edge: ShippedTap) -> None:
    processor = in_segments(edge.tap, 3)
    edge.look()
    first = edge.shipper
    edge.restart()
    edge.look()
    edge.tap.end(processor)
    with pytest.raises(StoreError, match="another framegate"):
        first.look(None, last=True)
    assert first.look(None, last=True), "the next time it takes over"
    assert verify(edge.root).rows == verify(str(edge.folder)).rows


def test_two_logs_under_one_name_are_not_complete_while_both_are_shipped(edge: ShippedTap, tmp_path: Path) -> None:
    """One does not know which streams of the other began meanwhile."""
    (tmp_path / "other").mkdir()
    other = ShippedTap(tmp_path / "other")
    other.url, other.root, other.store = edge.url, edge.root, edge.store
    for number, each in enumerate((edge, other)):
        each.now_ns = START + 2 * MINUTE_NS
        each.restart()
        each.tap.end(in_segments(each.tap, 2, boot_id=f"b{number}"))
        each.look({})

    def look(each: ShippedTap, later_s: float) -> int:
        """Until when the node is complete, after a time and a pass."""
        for one in (edge, other):
            one.later(later_s)
        with contextlib.suppress(StoreError):
            each.look({})
        return edge.verify()[0].until_ns

    known_ns = edge.now_ns
    other.tap.end(in_segments(other.tap, 4, boot_id="b9"))  # its shipper is slow
    for number in range(12):
        assert look(other if number % 4 > 1 else edge, 0.5) == known_ns, number
    other.leave()
    assert [look(edge, later_s) for later_s in (0.5, 0.5, 2.9)] == [known_ns] * 3
    assert look(edge, 0.2) == edge.now_ns, "the other one has not replaced it for three intervals"


def test_a_bucket_that_is_missing_is_not_taken_for_a_segment_that_retention_took(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 2))
    edge.store.faults = {"create": [AbsentError("no such bucket")]}
    with pytest.raises(AbsentError):
        edge.look()
    assert not read_ledger(edge.root).present


def test_a_bucket_that_is_missing_is_not_taken_for_another_framegate(tmp_path: Path, s3: S3) -> None:
    edge = ShippedTap(tmp_path / "tap", url="s3://missing/production")
    with pytest.raises(StoreError, match="no such bucket"):
        edge.look()
    edge.leave()


def test_what_retention_takes_meanwhile_is_a_line_of_the_ledger(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 4))
    edge.store.faults = {"create": [lambda: edge.tap.keep(14_000)]}
    assert edge.look()
    _, verdict, _ = edge.verify()
    assert not verdict.faults
    assert "cut" in {row.state for row in verdict.rows}
    assert edge.verify()[2][0].state != "complete"


def test_deleted_after_it_was_shipped_is_not_lost(edge: ShippedTap) -> None:
    """Also when the node's ledger has dropped the stream."""
    stream = in_segments(edge.tap, 3)
    edge.tap.end(stream)
    edge.look()
    edge.tap.take(stream.stream)
    edge.look()
    edge.tap.ledger.compact({}, START + HOUR_NS)
    assert not edge.tap.ledger.ledger.streams
    edge.look()
    edge.leave()
    edge.look()
    _, verdict, found = edge.verify()
    assert (verdict.faults, [minute.state for minute in found]) == ([], ["complete"] * 3)


def test_dropped_before_it_was_shipped_is_lost(edge: ShippedTap) -> None:
    edge.look()
    stream = in_segments(edge.tap, 3)
    edge.tap.end(stream)
    edge.tap.take(stream.stream)
    edge.tap.ledger.compact({}, START + HOUR_NS)
    edge.tap.end(in_segments(edge.tap, 3, boot_id="b1"))
    edge.leave()
    edge.look()
    assert {minute.state for minute in edge.verify()[2]} == {"lost"}


def test_another_log_of_the_node_leaves_the_former_one_in_the_store(edge: ShippedTap, tmp_path: Path) -> None:
    """A volume was lost; its stream has no end and never will."""
    in_segments(edge.tap, 3)
    edge.look()
    (tmp_path / "other").mkdir()
    other = ShippedTap(tmp_path / "other")
    other.url, other.root, other.store = edge.url, edge.root, edge.store
    other.restart()
    other.tap.end(in_segments(other.tap, 2, boot_id="b1"))
    other.look()
    other.leave()
    other.look()
    node, verdict, found = other.verify()
    assert (verdict.faults, node.streams, node.written) == ([], 2, 1)
    assert {minute.state for minute in found} == {"open"}, "nobody knows how the former stream ended"


def test_registers_as_a_consumer_once_the_store_has_it(edge: ShippedTap) -> None:
    processor = in_segments(edge.tap, 3)
    edge.restart(register=True)
    edge.store.faults = {"create": [None, StoreError("refused")], "replace": [StoreError("refused")]}
    for expected in ({}, {processor.stream: segments(str(edge.folder), processor.stream)[-1].base}):
        with pytest.raises(StoreError):
            edge.look()
        assert read_consumers(str(edge.folder)).offsets[CONSUMER] == expected


def test_bytes_are_sent_no_faster_than_the_bandwidth(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 3))
    edge.restart(bandwidth=1000)
    edge.look()
    assert sum(edge.slept) > 0
    total = sum(segment.size for segment in segments(str(edge.folder), "edge.0.b0"))
    assert edge.shipper._free_s - edge.now_s == pytest.approx(total / 1000, rel=0.5)


def test_the_ledger_is_replaced_once_in_an_interval(edge: ShippedTap) -> None:
    in_segments(edge.tap, 2)
    assert [edge.shipper.look(None) for _ in range(2)] == [True, False]
    edge.later(0.999)
    assert not edge.shipper.look(None)
    edge.later(0.001)
    assert edge.shipper.look(None)


def test_a_folder_that_has_not_changed_is_not_listed(edge: ShippedTap, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = in_segments(edge.tap, 3)
    edge.look()
    folder = edge.folder / processor.stream
    os.utime(folder, ns=(0, 0))  # long ago
    edge.look()
    monkeypatch.setattr(os, "listdir", lambda path: pytest.fail(f"{path} was listed"))
    edge.look({processor.stream: (edge.now_ns, 0)})
    assert edge.until(processor.stream) == 2, "the open segment is known"
    monkeypatch.undo()
    edge.tap.end(processor)
    edge.look()
    assert edge.shipped.streams[processor.stream][0] == read_ledger(str(edge.folder)).streams[processor.stream].end


def test_while_much_is_sent_the_node_is_heard(edge: ShippedTap) -> None:
    edge.look()
    in_segments(edge.tap, 4)
    edge.later(10)
    edge.store.faults = {"create": [None, None, StoreError("refused")]}
    with pytest.raises(StoreError):
        edge.look()
    assert edge.shipped.heard_ns > START
    assert edge.shipped.streams["edge.0.b0"][0] > 0
    assert edge.verify()[2][0].state == "open"


# --- until when a stream is complete ---------------------------------------------------------------------------------------------


def test_without_word_from_control_nothing_is_known_of_a_stream_without_an_end(edge: ShippedTap) -> None:
    in_segments(edge.tap, 5)
    edge.look()
    edge.later(100)
    edge.look()
    assert edge.until("edge.0.b0") == 0
    assert {minute.state for minute in edge.verify()[2]} == {"open"}


def test_an_idle_stream_is_complete_up_to_what_is_not_shipped(edge: ShippedTap) -> None:
    processor = in_segments(edge.tap, 5)  # the last minute's block is in the open segment
    edge.look({processor.stream: (edge.now_ns - 5, 0)})
    assert edge.until(processor.stream) == 4
    processor.writer.thread.seal(False)
    edge.later(10)
    idle_ns = edge.now_ns - 5
    edge.look({processor.stream: (idle_ns, 0)})
    assert edge.shipped.streams[processor.stream][1] == idle_ns


def test_a_block_of_a_later_window_closes_those_before(edge: ShippedTap) -> None:
    processor = in_segments(edge.tap, 5)
    base = edge.now_ns = START + 3 * MINUTE_NS - 90 * S
    edge.restart()
    facts = {processor.stream: (0, 0)}
    edge.now_ns = base + 300 * S
    edge.now_s += 300
    edge.look(facts)
    assert edge.until(processor.stream) == 0, "what control says may be older than the block"
    edge.later(1.999)
    edge.look(facts)
    assert edge.until(processor.stream) == 0
    edge.later(0.001)
    edge.look(facts)
    assert edge.until(processor.stream) == 3, "the block of minute 3 is shipped"


@pytest.mark.parametrize(("before_s", "minute"), [(5.001, 3), (5.0, 0), (-100, 0)])
def test_after_a_failed_write_a_block_closes_nothing(edge: ShippedTap, before_s: float, minute: int) -> None:
    processor = in_segments(edge.tap, 5)
    edge.now_ns = START + MINUTE_NS
    edge.restart()
    edge.later(300)
    facts = {processor.stream: (0, START + 3 * MINUTE_NS - int(before_s * S))}
    edge.look(facts)
    edge.later(2)
    edge.look(facts)
    assert edge.until(processor.stream) == minute


def test_a_clock_that_is_set_back_takes_back_what_was_said(edge: ShippedTap) -> None:
    processor = in_segments(edge.tap, 5)
    processor.writer.thread.seal(False)
    edge.now_ns = START + 10 * MINUTE_NS
    edge.restart()
    edge.look({processor.stream: (edge.now_ns, 0)})
    assert edge.until(processor.stream) == 10
    edge.later(10, clock=-8 * 60)
    assert edge.shipper.look(Told(edge.now_ns, edge.now_s, {}), last=True)
    assert edge.until(processor.stream) <= 2
    for number in range(6):
        processor.block([b"x"], at_ns=START + 2 * MINUTE_NS + number * MINUTE_NS)
    processor.writer.thread.seal(False)
    edge.later(5.5 * 60)
    for _ in range(2):
        edge.look({processor.stream: (0, 0)})
        edge.later(2)
    assert edge.until(processor.stream) <= 2, "before the clock has passed its former time, a block proves nothing"


def test_a_shipper_goes_on_from_what_the_store_says(edge: ShippedTap) -> None:
    processor = in_segments(edge.tap, 5)
    edge.look({processor.stream: (edge.now_ns, 0)})
    edge.restart()
    edge.look()
    assert edge.until(processor.stream) == 4


def test_a_stream_that_the_ledger_does_not_know_yet_keeps_the_node_open(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 2))
    edge.look({"edge.1.b9": (0, 0)})
    assert edge.verify()[0].until_ns == 0
    assert {minute.state for minute in edge.verify()[2]} == {"open"}


def test_a_directory_without_a_ledger_proves_nothing(edge: ShippedTap) -> None:
    edge.tap.end(in_segments(edge.tap, 2))
    (edge.folder / "_ledger.jsonl").unlink()
    edge.leave()
    edge.look()
    assert not edge.verify()[1].complete
    assert any("lost" in fault for fault in edge.verify()[1].faults)
