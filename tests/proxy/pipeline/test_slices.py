from pathlib import Path

import pytest

from framegate.proxy.pipeline.loss import DataLossError, Loss
from framegate.proxy.pipeline.planner import Slice
from framegate.proxy.pipeline.slices import read_slice
from framegate.proxy.tap import record
from tests.fakes.slices import damage, segment, slices
from tests.fakes.tap_log import START_NS, FakeProcessor, framed


def datas(part: Slice) -> list[bytes | Loss]:
    """What is in a slice for who goes on."""
    return [block if isinstance(block, Loss) else bytes(block.data) for block in read_slice(part, fail_on_data_loss=False)]


@pytest.mark.parametrize("content", [b"", b"x", bytes(4096), b"FGTAPLOG" + (99).to_bytes(4, "little") + bytes(5000)])
def test_a_segment_that_is_none_any_more_is_damaged_and_no_fault_of_the_program(tmp_path: Path, content: bytes) -> None:
    FakeProcessor(tmp_path).block([b"abc"])
    (part,) = slices(tmp_path)
    segment(tmp_path).write_bytes(content)
    with pytest.raises(DataLossError, match=str(segment(tmp_path))):
        list(read_slice(part))
    (lost,) = datas(part)
    assert isinstance(lost, Loss)
    assert lost[:4] == (part.stream, part.start, part.end, record.REASON_DAMAGED)


def test_a_segment_under_another_ones_name_is_damaged(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path, segment_size=1)
    for _ in range(2):
        processor.block([b"abc"])
    first, second = sorted(tmp_path.glob("*/*"))
    planned = slices(tmp_path)
    second.write_bytes(first.read_bytes())
    with pytest.raises(DataLossError, match="says it begins at 0"):
        list(read_slice(planned[1]))


def test_a_segment_of_another_stream_is_damaged(tmp_path: Path) -> None:
    for name in ("b0", "b1"):
        FakeProcessor(tmp_path, boot_id=name).block([b"abc"])
    first, second = sorted(tmp_path.glob("*/*"))
    _, planned = slices(tmp_path)
    second.write_bytes(first.read_bytes())
    with pytest.raises(DataLossError, match=r"of another stream, edge\.0\.b0"):
        list(read_slice(planned))


def test_a_block_whose_crc_does_not_fit_is_an_error(tmp_path: Path) -> None:
    (part,) = damage(lambda block: block.header.data_at, tmp_path)
    with pytest.raises(DataLossError, match="its CRC does not fit"):
        list(read_slice(part))
    one, lost, three = datas(part)
    assert (one, three) == (framed([b"one"]), framed([b"three"]))
    assert isinstance(lost, Loss)
    assert (lost.end - lost.offset, lost.from_ns, lost.reason) == (lost.offset, START_NS, record.REASON_DAMAGED)


def test_nothing_is_read_behind_a_damaged_header(tmp_path: Path) -> None:
    (part,) = damage(lambda _: 20, tmp_path)
    with pytest.raises(DataLossError, match="damaged at offset"):
        list(read_slice(part))
    one, lost = datas(part)
    assert one == framed([b"one"])
    assert isinstance(lost, Loss)
    assert (lost.end, lost.until_ns) == (part.end, segment(tmp_path).stat().st_mtime_ns)


def test_a_segment_sealed_since_it_was_planned_is_found(tmp_path: Path) -> None:
    processor = FakeProcessor(tmp_path)
    processor.block([b"abc"])
    planned = slices(tmp_path)
    processor.close()
    assert [len(list(read_slice(part))) for part in planned] == [1]


def test_a_segment_deleted_since_it_was_planned_is_an_error(tmp_path: Path) -> None:
    FakeProcessor(tmp_path).block([b"abc"])
    (part,) = slices(tmp_path)
    segment(tmp_path).unlink()
    with pytest.raises(DataLossError, match="was deleted before"):
        list(read_slice(part))
    (lost,) = datas(part)
    assert lost == Loss(part.stream, part.start, part.end, record.REASON_VANISHED, 0, 0, ((None, "request"), (None, "response")))
