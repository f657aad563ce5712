"""The ids of a segment's span."""

import hashlib

import pytest

from framegate.proxy.tap import trace_ids
from framegate.proxy.tap.trace_ids import segment_trace


def test_the_ids_are_of_the_hash_that_is_documented_in_every_version() -> None:
    digest = hashlib.sha256(b"framegate.tap.segment\0n.0.b\x000").hexdigest()
    found = segment_trace("n.0.b", 0)
    assert (
        (f"{found.trace_id:032x}", f"{found.span_id:016x}")
        == (digest[:32], digest[32:48])
        == ("6e5f577021482c312a1bbcd48477b096", "70717c29d4292a24")
    )


def test_each_stream_and_each_offset_has_its_own() -> None:
    names = [("a", 0), ("a", 1), ("a", 10), ("a\x001", 0), ("b", 0), ("a.1", 0), ("ä", 0)]
    found = [segment_trace(*name) for name in names]
    assert len({one.trace_id for one in found}) == len({one.span_id for one in found}) == len(names)


def test_an_id_is_never_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros:
        def __init__(self, data: bytes) -> None:
            pass

        def digest(self) -> bytes:
            return bytes(32)

    monkeypatch.setattr(trace_ids.hashlib, "sha256", Zeros)
    assert segment_trace("a", 0) == (1, 1)
