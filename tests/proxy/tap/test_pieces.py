import dataclasses
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framegate.proxy.network.run import Run
from framegate.proxy.tap import headers, record
from framegate.proxy.tap.log_block import LogBlock
from framegate.proxy.tap.log_reader import BlockRef, first_offset, read_block, read_raw, segments, walk
from framegate.proxy.tap.pieces import PieceIndex, Place
from tests.fakes.cases import each_of
from tests.fakes.runs import pieces_of
from tests.fakes.tap_files import flip
from tests.fakes.tap_log import START_NS, FakeProcessor, framed
from tests.fakes.tap_read import Frame, frames_in, read_blocks, read_frames

BODY = bytes(range(256)) * 20


@dataclasses.dataclass
class Sent:
    """What one connection sends: frames, each whole (no sizes) or in pieces, the last one maybe cut short."""

    frames: list[tuple[bytes, list[int] | None]]
    cut_short: bool


SENT = st.builds(
    Sent,
    st.lists(st.tuples(st.binary(min_size=8, max_size=90), st.none() | st.lists(st.integers(12, 50), max_size=4)), max_size=4),
    st.booleans(),
)


def steps(sent: Sent) -> Iterator[tuple[bytes, Run | None]]:
    """Body and piece, or no piece for a whole frame."""
    for number, (body, sizes) in enumerate(sent.frames):
        if sizes is None:
            yield body, None
            continue
        runs = pieces_of(body, sizes)
        if sent.cut_short and number == len(sent.frames) - 1:
            runs = runs[:-1]
        for run in runs:
            yield body, run


def play(processor: FakeProcessor, connections: list[Sent], order: list[int]) -> list[tuple[int, int, bytes]]:
    """Send as ``order`` says, connection by connection, -1 flushes; returns the frames in the order of their ends."""
    left = [list(steps(sent)) for sent in connections]
    numbers = [0] * len(connections)
    ended: list[tuple[int, int, bytes]] = []
    for choice in [*order, *(index for index, items in enumerate(left) for _ in items)]:
        if choice < 0:
            processor.flush()
            continue
        items = left[choice % len(left)]
        if not items:
            continue
        connection = choice % len(left)
        body, run = items.pop(0)
        if run is None:
            processor.send([body], connection=connection)
        else:
            processor.part(run, len(body), connection=connection)
        if run is None or run.frames:
            ended.append((connection, numbers[connection], body))
            numbers[connection] += 1
        elif not items:
            processor.point(connection, "request").cut_short(START_NS)
    return ended


def frames_of(root: Path, stream: str, start: int = 0, end: int | None = None) -> list[Frame]:
    return [frame for block in read_blocks(str(root), stream, start, end) for frame in frames_in(block)]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    connections=st.lists(SENT, min_size=1, max_size=4),
    order=st.lists(st.integers(-1, 3), max_size=40),
    segment_size=st.sampled_from([1000, 1 << 20]),
    flush_size=st.sampled_from([300, 1 << 18]),
)
def test_any_frames_in_any_pieces_come_back_whole_from_any_range(
    tmp_path_factory: pytest.TempPathFactory, connections: list[Sent], order: list[int], segment_size: int, flush_size: int
) -> None:
    root = tmp_path_factory.mktemp("log")
    processor = FakeProcessor(root, segment_size=segment_size, flush_size=flush_size)
    sent = play(processor, connections, order)
    processor.close()
    found = frames_of(root, processor.stream)
    assert [(frame.connection, frame.number, frame.body) for frame in found] == sent
    assert all(frame.size == len(frame.body) for frame in found)
    assert processor.writer.frames_matched_request == processor.writer.thread.frames_flushed_request == len(sent)
    refs = list(walk(str(root), processor.stream))
    by_block = [list(frames_in(read_block(ref))) for ref in refs]
    for first, ref in enumerate(refs):
        for last in range(first, len(refs)):
            expected = [frame for block in by_block[first : last + 1] for frame in block]
            assert frames_of(root, processor.stream, ref.header.offset, refs[last].header.end) == expected


def in_three_blocks(root: Path, **sizes: int) -> tuple[FakeProcessor, list[BlockRef]]:
    """A frame whose three pieces, with a small frame of another connection each, lie in three blocks."""
    processor = FakeProcessor(root, **sizes)
    for number, run in enumerate(pieces_of(BODY, [2000, 2000])):
        processor.send([b"%d" % number], connection=2, direction="response")
        processor.part(run, len(BODY))
        processor.flush()
    return processor, list(walk(str(root), processor.stream))


def test_pieces_are_no_rows_and_the_last_one_is_the_chunk(tmp_path: Path) -> None:
    processor, refs = in_three_blocks(tmp_path)
    blocks = list(read_blocks(str(tmp_path), processor.stream))
    assert [[row.kind for row in block.rows] for block in blocks] == [[record.KIND_FRAMES]] * 2 + [[record.KIND_FRAMES] * 2]
    assert [block.header.flags for block in blocks] == [0, 0, 0]
    assert [block.header.end for block in blocks] == [ref.header.end for ref in refs]
    row = blocks[2].rows[1]
    assert bytes(blocks[2].chunk_data(row)) == framed([BODY])
    assert (row.original_bytes, row.lost_bytes, row.lost_frames, row.reason) == (len(BODY) + 4, 0, 0, record.REASON_NONE)
    assert not row.flags & record.FLAG_PIECES
    assert [frame.body for block in blocks for frame in frames_in(block)] == [b"0", b"1", b"2", BODY]


def test_raw_blocks_say_what_lies_where(tmp_path: Path) -> None:
    _, refs = in_three_blocks(tmp_path)
    raw = [read_raw(ref) for ref in refs]
    pieces = [row for block in raw for row in block.rows if row.kind == record.KIND_PIECE]
    assert [(row.original_bytes, row.data_length, row.frame_count, row.first_frame) for row in pieces] == [(0, 2000, 0, 0), (2000, 2000, 0, 0)]
    last = raw[2].rows[-1]
    assert (last.lost_frames, last.data_length, last.flags) == (0, len(BODY) + 4 - 4000, record.FLAG_PIECES | record.FLAG_SIZES)
    assert [len(list(frames_in(block))) for block in raw] == [1, 1, 2]
    data = Path(refs[0].path).read_bytes()
    assert [data[ref.position : ref.position + 4] for ref in refs] == [headers.BLOCK_MAGIC_PIECES] * 3


def truncated(block: LogBlock, length: int) -> None:
    """The block's last chunk is the frame cut to so many bytes of its body, and says so."""
    row = block.rows[-1]
    frame = list(frames_in(block))[-1]
    assert (frame.size, frame.body) == (len(BODY), BODY[:length])
    assert (record.REASONS[row.reason], row.original_bytes, row.lost_bytes) == ("pieces_lost", len(BODY) + 4, len(BODY) - length)
    assert row.frame_count == 1


@each_of(("piece", "way", "length"), [(0, "deleted", 0), (1, "deleted", 1996), (1, "damaged", 1996)], fresh={"folder": tempfile.TemporaryDirectory})
def test_a_frame_of_which_pieces_are_gone_says_what_is_missing(folder: str, piece: int, way: str, length: int) -> None:
    processor, refs = in_three_blocks(Path(folder), segment_size=1)
    path = segments(folder, processor.stream)[piece].path
    if way == "deleted":
        os.unlink(path)
    else:
        flip(Path(path), refs[piece].position + refs[piece].header.data_at, 1)
    truncated(read_block(refs[2]), length)
    if piece == 0:
        assert [frame.body for frame in read_frames(folder)] == [b"1", b"2", b""]
        assert first_offset(folder, processor.stream) == refs[1].header.offset


def test_a_segment_deleted_while_a_range_is_read_costs_its_pieces(tmp_path: Path) -> None:
    processor, refs = in_three_blocks(tmp_path, segment_size=1)
    reading = read_blocks(str(tmp_path), processor.stream)
    assert [len(next(reading).rows) for _ in range(2)] == [1, 1]
    os.unlink(refs[1].path.replace(".open", ".seg"))
    truncated(next(reading), 1996)


def test_pieces_of_a_cut_frame_on_the_same_connection_are_not_mistaken(tmp_path: Path) -> None:
    """Of one connection: a frame that the log lost in the middle, then one that came whole in pieces."""
    processor = FakeProcessor(tmp_path)
    first, *rest = pieces_of(BODY, [2000, 2000])
    processor.part(first, len(BODY))
    processor.flush()
    processor.point(1, "request").cut_short(START_NS)
    processor.sent[1, "request"] = 1
    for run in (first, *rest):
        processor.part(run, len(BODY))
        processor.flush()
    assert [(frame.number, frame.body) for frame in read_frames(str(tmp_path))] == [(1, BODY)]


def test_looking_back_reads_the_log_once_for_a_range_and_not_before_the_first_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = FakeProcessor(tmp_path)
    for _ in range(20):
        processor.parts(BODY, [1000], connection=9)
    processor.writer.write_queued()
    first = int(processor.writer.thread.bytes_flushed)
    runs = {connection: pieces_of(BODY, [500] * 8) for connection in range(1, 5)}
    for index in range(8):
        for connection, pieces in runs.items():
            processor.part(pieces[index], len(BODY), connection=connection)
            processor.flush()
    start = processor.writer.thread.bytes_flushed
    for connection, pieces in runs.items():
        for run in pieces[8:]:
            processor.part(run, len(BODY), connection=connection)
        processor.flush()
    reads: list[tuple[int, int]] = []
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: reads.append((size, at)) or real(fd, size, at))
    found = frames_of(tmp_path, processor.stream, int(start))
    assert [(frame.connection, frame.body) for frame in found] == [(connection, BODY) for connection in runs]
    reads = [(size, at) for size, at in reads if at > 0]  # of the log: segments' headers apart
    assert sum(size > record.BLOCK_HEADER_BYTES for size, _ in reads) <= 32 + 8
    assert min(at for _, at in reads) == first + record.SEGMENT_HEADER_BYTES


def row(**facts: int) -> record.ChunkRow:
    return record.ChunkRow(**{**dict.fromkeys(record.ChunkRow._fields, 0), "connection": 1, **facts})


def test_the_index_forgets_what_is_completed_or_said_to_be_missing() -> None:
    index = PieceIndex()
    header = headers.BlockHeader(**dict.fromkeys(headers.BlockHeader._fields, 0))
    first = row(kind=record.KIND_PIECE, data_length=5, first_frame=3)
    second = first._replace(original_bytes=5)
    assert index.note("p", 100, header, [second]) is None
    for _ in range(2):  # the second time there is nothing before the first
        earlier = PieceIndex()
        earlier.note("o", 50, header, [first])
        index.note_before(earlier)
    last = row(flags=record.FLAG_PIECES, first_frame=3)
    assert index.note("q", 200, header, [last]) == last
    assert index.take(last) == [Place(0, "o", 50, 5), Place(5, "p", 100, 5)]
    index.note("p", 250, header, [first, second])
    index.note("p", 300, header, [first])
    assert index.take(last) == [Place(0, "p", 300, 5)], "the number began anew"
    index.note("p", 300, header, [first])
    index.note("p", 400, header, [row(kind=record.KIND_GAP, first_frame=3)])
    assert (index.take(last), len(index)) == ([], 0)


def test_frames_in_pieces_are_found_while_a_thread_writes_them(tmp_path: Path) -> None:
    """Where the loop thread believes the log to end when a frame begins is never behind its first piece."""
    processor = FakeProcessor(tmp_path, flush_size=4000, segment_size=64 << 10)
    processor.writer.start()
    runs = {connection: pieces_of(BODY, [300] * 20) for connection in range(1, 30)}
    for index in range(20 + len(runs)):
        for connection, pieces in runs.items():
            if 0 <= index - connection < len(pieces):
                processor.part(pieces[index - connection], len(BODY), connection=connection)
        if index % 3 == 0:
            while processor.writer.queued_bytes > 64 << 10:
                threading.Event().wait(0.0005)
    processor.close()
    assert sorted(frame.connection for frame in read_frames(str(tmp_path))) == sorted(runs)
    found = [frame for ref in walk(str(tmp_path), processor.stream) for frame in frames_in(read_block(ref))]
    assert [frame.connection for frame in found if frame.body != BODY] == []
    assert len(found) == len(runs)
