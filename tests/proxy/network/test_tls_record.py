"""proxy.network.tls_record: portions end with records, however the bytes come."""

import random

from hypothesis import given
from hypothesis import strategies as st

from proxy.network.tls_record import RecordCutter


def record(size: int) -> bytes:
    return b"\x17\x03\x03" + size.to_bytes(2, "big") + b"x" * size


@given(st.lists(st.integers(0, 900), min_size=1, max_size=30), st.integers(0, 2**32), st.integers(1, 2000), st.integers(1, 1500))
def test_portions_end_with_records(sizes: list[int], seed: int, read: int, most: int) -> None:
    stream = b"".join(record(size) for size in sizes)
    ends = {0}
    position = 0
    for size in sizes:
        position += 5 + size
        ends.add(position)
    cutter = RecordCutter()
    chooser = random.Random(seed)
    fed = 0
    while fed < len(stream):
        data = stream[fed : fed + chooser.randint(1, read)]
        start = 0
        while start < len(data):
            end = cutter.cut(data, start, most)
            assert start < end <= len(data)
            portion = fed + end
            last = max(item for item in ends if item <= portion)
            assert cutter.partial == portion - last
            if portion in ends:
                inner = [item for item in ends if fed + start < item < portion]
                assert end - start <= most or not inner
            else:
                assert end == len(data)
            start = end
        fed += len(data)
    assert cutter.partial == 0


def test_whole_records_up_to_the_limit_are_one_portion() -> None:
    data = record(10) * 4
    assert RecordCutter().cut(data, 0, 60) == 60
    assert RecordCutter().cut(data, 0, 59) == 45
    assert RecordCutter().cut(data, 0, 1) == 15
