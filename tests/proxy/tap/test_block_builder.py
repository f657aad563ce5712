import gc
import io
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.network.run import Buffer
from framegate.proxy.tap.block import Block
from framegate.proxy.tap.block_builder import BLOCK_OVERHEAD, COPY_BELOW, BlockBuilder, pack_codes
from framegate.proxy.tap.gap import Gap
from framegate.proxy.tap.record import CHUNK_ROW, KIND_GAP, ChunkRow
from tests.fakes.tap_log import ints


def add(builder: BlockBuilder, payload: Buffer, capture_ns: int = 5, direction: int = 0) -> None:
    offset = builder.data_len
    builder.add_piece(payload)
    builder.add_frames_row(capture_ns, 1, 0, len(payload), 0, offset, 1, 0, -1, -1, builder.string("main"), -1, -1, -1, direction)


def rows(block: Block) -> list[ChunkRow]:
    return [ChunkRow(*fields) for fields in CHUNK_ROW.iter_unpack(block.rows)]


@given(payloads=st.lists(st.one_of(st.binary(max_size=50), st.integers(COPY_BELOW - 1, COPY_BELOW + 1).map(bytes)), max_size=8))
def test_pieces_stay_in_order_whether_copied_or_referenced(payloads: list[bytes]) -> None:
    builder = BlockBuilder()
    for payload in payloads:
        add(builder, payload)
    block = builder.finish()
    assert b"".join(block.pieces) == b"".join(payloads)
    assert block.data_len == sum(len(payload) for payload in payloads)
    assert [row.data_length for row in rows(block)] == [len(payload) for payload in payloads]


def test_large_pieces_are_not_copied_and_small_ones_are_joined() -> None:
    builder = BlockBuilder()
    large = bytes(COPY_BELOW)
    for payload in (b"a", b"b", large, b"c", b"d"):
        add(builder, payload)
    block = builder.finish()
    assert [bytes(piece) for piece in block.pieces] == [b"ab", large, b"cd"]
    assert block.pieces[1] is large


def test_a_buffer_that_comes_back_holds_the_next_payload_and_nothing_of_the_last() -> None:
    builder = BlockBuilder(10)
    large = memoryview(bytes(COPY_BELOW))
    for payload in (b"a long first one", large, b"z"):
        add(builder, payload)
    first = builder.finish()
    buffer = first.copied
    add(builder, b"meanwhile")
    builder.reuse(first)
    assert (first.copied, first.pieces) == (None, [])
    second = builder.finish()
    add(builder, b"short")
    third = builder.finish()
    assert third.copied is buffer
    assert [bytes(piece) for block in (second, third) for piece in block.pieces] == [b"meanwhile", b"short"]
    assert len(large) == COPY_BELOW, "what was referenced is not ours to release"


def kept(block: Block) -> int:
    """Bytes that a block keeps from being freed: its sections, each buffer behind its pieces once, its buffer for copies with its room."""
    whole = {id(piece): len(piece) for piece in block.pieces if isinstance(piece, bytes)}
    behind = [piece.obj for piece in block.pieces if isinstance(piece, memoryview) and not any(piece is view for view in block.views)]
    whole |= {id(buffer): len(buffer) for buffer in behind}
    room = 0 if block.copied is None else block.copied.seek(0, io.SEEK_END)
    if block.copied is None:
        whole |= {id(view.obj): len(view.obj) for view in block.views}
    return sum(whole.values()) + room + sum(len(section) for section in (block.rows, block.starts, block.sizes, block.answers))


def pieces_of(size: int, cut: int) -> tuple[Buffer, ...]:
    """What the end of one run and the beginning of the next look like: two views of what one read gave."""
    read = bytes(size)
    return memoryview(read)[: size * cut // 8], memoryview(read)[size * cut // 8 :]


@given(
    st.lists(
        st.one_of(
            st.integers(0, 40_000).map(lambda size: (bytes(size),)),
            st.builds(pieces_of, st.integers(1000, 262_144), st.integers(0, 8)),
        ),
        max_size=12,
    ),
    st.sampled_from([0, 1000, 4096 + COPY_BELOW, 131_072 + COPY_BELOW]),
)
def test_a_block_keeps_no_more_than_it_counts(payloads: list[tuple[Buffer, ...]], room: int) -> None:
    builder = BlockBuilder(room)
    for pieces in payloads:
        for piece in pieces:
            offset = builder.data_len
            builder.add_piece(piece)
            builder.starts.write(bytes(4))
            builder.sizes.write(bytes(4))
            builder.add_answers(ints([1]), ints([2]), ints([3]), ints([4]))
            builder.add_frames_row(1, 1, 0, len(piece), 0, offset, 1, 0, 0, 0, -1, -1, -1, -1, 0)
    before = builder.weight
    data = b"".join(bytes(piece) for pieces in payloads for piece in pieces)
    block = builder.finish()
    assert b"".join(block.pieces) == data
    assert kept(block) <= block.weight <= 2 * kept(block) + BLOCK_OVERHEAD + COPY_BELOW
    assert block.weight <= before + BLOCK_OVERHEAD + COPY_BELOW


def test_a_block_counts_what_its_objects_take() -> None:
    builder = BlockBuilder(0)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        blocks = []
        for _ in range(200):
            add(builder, b"a trickle")
            blocks.append(builder.finish())
        took = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert took <= sum(block.weight for block in blocks)


def test_a_buffer_that_had_to_grow_is_not_kept() -> None:
    builder = BlockBuilder(100)
    add(builder, bytes(500))
    assert builder.weight >= 500 + 104 + 4
    block = builder.finish()
    assert block.weight >= 500 + BLOCK_OVERHEAD
    assert (builder.weight, builder.chunk_count, builder.data_len) == (0, 0, 0)
    assert b"".join(block.pieces) == bytes(500)
    grown = block.copied
    builder.reuse(block)
    for _ in range(2):
        add(builder, bytes(10))
        block = builder.finish()
        assert block.copied is not grown
        builder.reuse(block)


def test_strings_are_named_once_in_a_block_and_anew_in_the_next() -> None:
    builder = BlockBuilder()
    assert [builder.string(text) for text in ("a", "b", "a", None)] == [0, 1, 0, -1]
    serial = builder.serial
    add(builder, b"x")
    assert builder.finish().strings == ["a", "b", "main"]
    assert builder.serial == serial + 1
    assert builder.string("b") == 0


def test_codes_pack_into_the_rows_last_bytes() -> None:
    builder = BlockBuilder()
    builder.add_piece(b"1234")
    builder.add_frames_row(1, 2, 3, 4, 5, 0, 1, 0, -1, -1, 0, -1, -1, -1, pack_codes(1, 0, 2, 6, 0, 1, 0x4001))
    (row,) = rows(builder.finish())
    assert (row.direction, row.kind, row.capture, row.reason, row.framing, row.protocol, row.flags) == (1, 0, 2, 6, 0, 1, 0x4001)


def test_tallies_count_frames_by_direction_and_losses() -> None:
    builder = BlockBuilder()
    add(builder, b"1", capture_ns=10)
    add(builder, b"2", capture_ns=20, direction=1)
    gap = Gap(connection=4, direction=1, reason=1, listener="main", first_frame=9, from_ns=15)
    gap.add(6, 600, 15)
    builder.add_gap(gap)
    assert gap.written
    block = builder.finish()
    assert (block.request_frames, block.response_frames, block.lost_frames, block.chunk_count) == (1, 1, 6, 3)
    assert (block.first_ns, block.last_ns) == (10, 20)
    row = rows(block)[2]
    assert (row.kind, row.capture_ns, row.lost_from_ns, row.lost_frames, row.lost_bytes, row.first_frame) == (KIND_GAP, 20, 15, 6, 600, 9)
    assert (row.frame_count, row.data_length, row.original_bytes) == (0, 0, 15)
