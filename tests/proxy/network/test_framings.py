"""framegate.proxy.network.framings: what a configuration may name, and what the record and the model call it."""

import typing

from framegate.proxy.config import model
from framegate.proxy.config.model import HeaderConfig
from framegate.proxy.network.fixed_header import FixedHeaderFraming
from framegate.proxy.network.framing import Framing
from framegate.proxy.network.framings import FRAMINGS, framing_of
from framegate.proxy.tap import record


def test_the_configuration_and_the_record_name_them_alike() -> None:
    assert {name: framing.name for name, framing in FRAMINGS.items()} == {name: name for name in FRAMINGS}
    assert {*FRAMINGS, "header"} == set(typing.get_args(model.Framing)) == set(record.FRAMINGS)
    assert record.FRAMINGS[record.FRAMING_INT32] == "int32"


def test_two_sides_with_one_header_speak_the_same() -> None:
    made: dict[HeaderConfig, Framing] = {}
    first = framing_of("header", HeaderConfig(size=6, width=2), made)
    assert framing_of("header", HeaderConfig(size=6, width=2), made) is first
    assert framing_of("header", HeaderConfig(size=6, width=3), made) is not first
    assert framing_of("varint", None, made) is FRAMINGS["varint"]


def test_a_header_is_as_its_keys_say() -> None:
    config = HeaderConfig(size=9, offset=1, width=3, byte_order="little", counts="rest", other_bytes="set", fill="0a0b0c0d0e0f")
    framing = framing_of("header", config, {})
    assert isinstance(framing, FixedHeaderFraming)
    assert framing.header_of(0x0102) == b"\x0a\x07\x01\x00\x0b\x0c\x0d\x0e\x0f"
    assert (framing.extra, framing.keeps) == (5, False)
    whole = framing_of("header", HeaderConfig(size=9, counts="frame"), {})
    assert isinstance(whole, FixedHeaderFraming)
    assert (whole.extra, whole.keeps, whole.header_of(1)) == (9, True, b"\0\0\0\x0a" + bytes(5))
