from pathlib import Path

from framegate.proxy.tap import record
from tests.fakes.runs import pieces_of
from tests.fakes.tap_log import START_NS, FakeProcessor
from tests.fakes.tap_read import frames_in, read_blocks


def test_a_block_in_words(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.send([b"one", b""], connection=7)
    processor.send([b"two"], direction="response", protocol="kafka", keys=[3 << 16], latencies=[9])
    processor.point(7, "request").lose(record.REASON_QUEUE_FULL, 2, 20, 2, START_NS)
    processor.close()
    (block,) = read_blocks(str(tmp_path), processor.stream)
    found = list(frames_in(block))
    assert [(frame.connection, frame.direction, frame.number, frame.body) for frame in found] == [
        (7, "request", 0, b"one"),
        (7, "request", 1, b""),
        (1, "response", 0, b"two"),
    ]
    assert {(frame.stream, frame.listener, frame.principal, frame.rule) for frame in found} == {(processor.stream, "main", "CN=a", "all")}
    assert [(frame.request_key, frame.latency_us, frame.transfer_us) for frame in found] == [(None, None, None)] * 2 + [(3 << 16, 9, None)]
    (gap,) = block.gaps()
    assert (gap.connection, gap.peer, gap.reason, gap.frames, gap.bytes) == (7, "10.0.0.1:7", "queue_full", 2, 20)
    assert [block.word(index) for index in (-1, block.rows[0].rule)] == [None, "all"]


def test_how_long_a_frame_took_that_came_in_pieces(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.parts(bytes(100), [50], at_ns=START_NS)
    for index, run in enumerate(pieces_of(bytes(100), [50])):
        processor.part(run, 100, at_ns=START_NS + 5_000_000 * index)
    processor.close()
    found = [frame for block in read_blocks(str(tmp_path), processor.stream) for frame in frames_in(block)]
    assert [frame.transfer_us for frame in found] == [0, 5000]
