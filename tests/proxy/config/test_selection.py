import pytest

from framegate.proxy.config.selection import KAFKA_APIS, ByteRange, api_key, byte_range, overlap
from tests.fakes.cases import each_of


def test_an_api_is_named_in_any_case_or_by_its_key() -> None:
    assert [api_key(name) for name in ("Produce", "fetch", "36", "api-9000", "0")] == [0, 1, 36, 9000, 0]
    assert all(api_key(name) == key for key, name in KAFKA_APIS.items())


@each_of("text", ["", "Fetsch", "-1", "32768", "1.5", "api-", "²"])
def test_what_is_no_api_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kafka API"):
        api_key(text)


def test_a_range_names_its_first_and_last_byte() -> None:
    assert byte_range("0-15") == ByteRange(0, 16)
    assert byte_range(" 7-7 ") == ByteRange(7, 8)
    assert byte_range("64-") == ByteRange(64, 2**31 - 1)


@each_of("text", ["", "-", "-5", "5", "9-8", "0-2147483647", "2147483647-", "0-15,20-", "a-b", "0--1"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a range of bytes"):
        byte_range(text)


def test_ranges_that_share_a_byte_overlap() -> None:
    assert not overlap([ByteRange(8, 10), ByteRange(0, 8), ByteRange(10, 11)])
    assert overlap([ByteRange(8, 10), ByteRange(0, 9)])
    assert overlap([ByteRange(0, 100), ByteRange(5, 6), ByteRange(200, 300)])
