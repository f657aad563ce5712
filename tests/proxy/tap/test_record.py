from framegate.proxy.tap import record


def test_the_structs_have_the_sizes_that_the_format_names() -> None:
    assert record.CHUNK_ROW.size == record.CHUNK_ROW_BYTES
    assert record.BLOCK_HEADER_BYTES % record.SECTION_ALIGNMENT == 0
    assert record.CHUNK_ROW_BYTES % record.SECTION_ALIGNMENT == 0


def test_the_published_fields_are_the_row_struct_without_holes() -> None:
    sizes = {"<i8": 8, "<i4": 4, "|u1": 1, "<u2": 2}
    position = 0
    for _, kind, offset in record.CHUNK_FIELDS:
        assert offset == position
        assert offset % sizes[kind] == 0
        position += sizes[kind]
    assert position == record.CHUNK_ROW_BYTES
    assert tuple(name for name, _, _ in record.CHUNK_FIELDS) == record.ChunkRow._fields


def test_codes_index_their_words() -> None:
    assert record.DIRECTIONS[record.DIRECTION_RESPONSE] == "response"
    assert record.KINDS[record.KIND_GAP] == "gap"
    assert record.CAPTURES[record.CAPTURE_HASH] == "hash"
    assert record.PROTOCOLS[record.PROTOCOL_KAFKA] == "kafka"
    for word in record.REASONS:
        assert record.REASONS[getattr(record, f"REASON_{word.upper()}")] == word


def test_names() -> None:
    assert record.stream_name("edge-1", "0", "b7") == "edge-1.0.b7"
    assert record.segment_file(7, sealed=False) == "00000000000000000007.open"
    assert record.segment_file(7, sealed=True) == "00000000000000000007.seg"
    assert [record.padding(n, 8) for n in (0, 1, 7, 8, 9)] == [0, 7, 1, 0, 7]
