"""Records: what counts as received."""

import struct

import pytest

pytest.importorskip("confluent_kafka")

from control.demo.records import Options, Received, value_of


def key(number: int) -> bytes:
    return struct.pack(">q", number)


def test_each_record_once_and_as_sent() -> None:
    received = Received(3)
    for number in range(3):
        received.take(key(number), value_of(number), number % 2)
    assert received.counts() == {"consumed": 3, "wrong": 0, "doubled": 0, "out_of_order": 0, "missing": 0}


def test_every_fault_has_its_count() -> None:
    received = Received(4)
    received.take(key(2), value_of(2), 0)
    received.take(key(1), value_of(1), 0)
    received.take(key(1), value_of(1), 1)
    received.take(key(0), value_of(3), 2)
    assert received.counts() == {"consumed": 4, "wrong": 1, "doubled": 1, "out_of_order": 1, "missing": 1}


def test_values_are_compared_with_those_that_are_expected() -> None:
    received = Received(2, lambda number: b"x" * number)
    received.take(key(0), b"", 0)
    received.take(key(1), b"y", 0)
    assert received.counts() == {"consumed": 2, "wrong": 1, "doubled": 0, "out_of_order": 0, "missing": 0}


def test_values_differ_and_carry_their_number() -> None:
    assert struct.unpack(">q", value_of(17)[:8]) == (17,)
    assert len({value_of(number) for number in range(100)}) == 100


def test_settings_of_a_client() -> None:
    plain = Options(bootstrap="h:1", topic="t", count=1)
    assert plain.settings() == {"bootstrap.servers": "h:1"}
    secured = Options(bootstrap="h:1", topic="t", count=1, ca="ca.crt", client={"sasl.username": "alice"})
    assert secured.settings() == {"bootstrap.servers": "h:1", "security.protocol": "ssl", "ssl.ca.location": "ca.crt", "sasl.username": "alice"}
