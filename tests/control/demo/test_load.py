"""The demo's frames and its histogram of times."""

import random
import zlib

import pytest

from control.demo.load import BODY_HEADER_SIZE, FRAME_HEADER, Latency, Payloads, frame


def test_a_frame_says_where_it_belongs_and_what_its_payload_sums_up_to() -> None:
    whole = frame(7, 2**40, b"payload")
    assert FRAME_HEADER.unpack_from(whole) == (len(whole) - 4, 7, 2**40, zlib.crc32(b"payload"))
    assert whole[4 + BODY_HEADER_SIZE :] == b"payload"


def test_frames_of_the_table_are_what_the_receiver_expects() -> None:
    payloads = Payloads()
    pieces = payloads.frames(3, 10, 5)
    assert b"".join(pieces) == b"".join(frame(3, sequence, payloads.of(3, sequence)) for sequence in range(10, 15))


def test_two_processes_have_the_same_table() -> None:
    assert Payloads().frames(1, 0, 100) == Payloads().frames(1, 0, 100)


def test_sizes_are_mixed() -> None:
    payloads = Payloads()
    sizes = [len(payloads.of(0, sequence)) + BODY_HEADER_SIZE for sequence in range(1024)]
    assert {100, 512, 4096, 65536} == set(sizes)
    assert 250 < sum(sizes) / len(sizes) < 350


@pytest.mark.parametrize("value_us", [0, 1, 15, 31, 32, 33, 1000, 123_456, 10_000_000])
def test_a_time_falls_into_a_bucket_that_is_a_sixteenth_wide_at_most(value_us: int) -> None:
    latency = Latency()
    latency.add(value_us * 1000, 1)
    assert value_us <= latency.quantile_us(1.0) <= value_us + max(0, value_us // 16)


def test_quantiles_of_many_times() -> None:
    source = random.Random(5)
    latency, times = Latency(), sorted(source.randrange(50, 5000) for _ in range(2000))
    for time_us in times:
        latency.add(time_us * 1000, 1)
    assert latency.total() == 2000
    for share in (0.5, 0.99):
        true = times[int(share * 2000) - 1]
        assert true <= latency.quantile_us(share) <= true * 17 / 16


def test_no_time_is_no_quantile() -> None:
    assert Latency().quantile_us(0.99) == 0
