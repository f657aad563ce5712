import hashlib
import itertools

from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.tap.redaction import Redaction, Redactor


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def redacted(kept: bytes, blank: list[tuple[int, int]], hashed: list[tuple[int, int]]) -> bytes:
    """What is to be stored, said as simply as can be."""
    stored = bytearray(kept)
    for start, end in blank:
        stored[start:end] = bytes(len(kept[start:end]))
    for start, end in hashed:
        stored[start:end] = (digest(kept[start:end]) * (len(kept) // 16 + 1))[: len(kept[start:end])]
    return bytes(stored)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Ranges that share no byte, some of them neighbours."""
    borders = sorted(draw(st.sets(st.integers(0, 90), max_size=10)))
    found: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    for start, end in itertools.pairwise(borders):
        kind = draw(st.sampled_from([0, 1, 2]))
        if kind < 2:
            found[kind].append((start, end))
    return found


@given(ranges(), st.binary(max_size=120), st.integers(0, 120), st.lists(st.integers(0, 120), max_size=8))
def test_a_body_is_stored_the_same_whatever_the_pieces(
    where: tuple[list[tuple[int, int]], list[tuple[int, int]]], body: bytes, cap: int, cuts: list[int]
) -> None:
    blank, hashed = where
    kept = body[:cap]
    redactor = Redactor(Redaction(blank, hashed), len(kept))
    borders = sorted({0, len(body), *(cut for cut in cuts if cut < len(body))})
    given_at: list[bytes] = []
    for start, end in itertools.pairwise(borders):
        given_at.append(b"".join(redactor.feed([body[start:end]])))
    assert b"".join(given_at) == redacted(kept, blank, hashed)
    assert redactor.replaced == sum(len(kept[start:end]) for start, end in blank + hashed)


def test_a_large_range_costs_no_memory_of_its_size() -> None:
    size = 10_000_000
    redactor = Redactor(Redaction([(0, size // 2)], [(size // 2, 2**31 - 1)]), size)
    body = bytes(range(256)) * (size // 256 + 1)
    pieces = redactor.feed([body[: size // 2 - 1], memoryview(body)[size // 2 - 1 : size]])
    assert len({id(piece) for piece in pieces}) < 12
    assert b"".join(pieces) == redacted(body[:size], [(0, size // 2)], [(size // 2, size)])


def test_a_hash_is_given_when_its_range_has_passed_and_zeros_at_once() -> None:
    redactor = Redactor(Redaction([(2, 4)], [(4, 8)]), 10)
    assert b"".join(redactor.feed([b"ab", b"cdef"])) == b"ab\0\0"
    assert redactor.feed([b"g"]) == []
    assert b"".join(redactor.feed([b"hij"])) == digest(b"efgh")[:4] + b"ij"
