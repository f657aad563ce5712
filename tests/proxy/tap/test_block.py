from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.tap.block import JOIN_BELOW, Layout, joined
from framegate.proxy.tap.block_builder import BlockBuilder
from framegate.proxy.tap.record import BLOCK_ALIGNMENT, BLOCK_HEADER_BYTES, SECTION_ALIGNMENT


@given(payloads=st.lists(st.binary(max_size=90), min_size=1, max_size=5), name=st.text(max_size=20))
def test_the_layout_is_aligned_and_as_long_as_its_header_says(payloads: list[bytes], name: str) -> None:
    builder = BlockBuilder()
    builder.string(name)
    for payload in payloads:
        offset = builder.data_len
        builder.add_piece(payload)
        builder.add_frames_row(5, 1, 0, len(payload), 0, offset, 1, 0, -1, -1, -1, -1, -1, -1, 0)
    layout = Layout(builder.finish())
    header = layout.header(0, 0, 0)
    assert sum(len(part) for part in layout.parts) + BLOCK_HEADER_BYTES == header.block_len
    assert header.block_len % BLOCK_ALIGNMENT == 0
    assert all(place % SECTION_ALIGNMENT == 0 for place in (header.chunks_at, header.starts_at, header.sizes_at, header.answers_at, header.data_at))
    body = b"".join(layout.parts)
    assert body[header.data_at - BLOCK_HEADER_BYTES :][: header.data_len] == b"".join(payloads)


@given(sizes=st.lists(st.sampled_from([0, 1, 50, JOIN_BELOW - 1, JOIN_BELOW, JOIN_BELOW + 1]), max_size=8))
def test_neighbouring_small_parts_become_one_and_large_ones_stay_uncopied(sizes: list[int]) -> None:
    parts = [bytes([index]) * size for index, size in enumerate(sizes)]
    found = joined(list(parts))
    assert b"".join(found) == b"".join(parts)
    assert [part for part in parts if len(part) >= JOIN_BELOW] == [
        part for part in found if any(part is one for one in parts if len(one) >= JOIN_BELOW)
    ]
    assert len(found) <= 2 * sum(size >= JOIN_BELOW for size in sizes) + 1
    assert all(found)
