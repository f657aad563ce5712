"""framegate.proxy.network.run: one thing, whatever reads it came in."""

from framegate.proxy.network.run import COPY_BELOW, PART, PART_FIRST, PART_LAST, Buffer, Run, keep, shorten
from tests.fakes.cases import each_of
from tests.fakes.network import run_of

FRAMES = b"\0\0\0\x03abc\0\0\0\x01d\0\0\0\0"


def test_a_run_of_one_read_is_the_very_object_that_was_read() -> None:
    run = run_of(FRAMES, 3)
    assert run.tail() is FRAMES
    assert run.pieces() == [FRAMES]
    assert list(run.starts()) == [0, 7, 12]
    assert run.size == len(FRAMES)


@each_of("extra", [b"", b"\0\0"])
@each_of("cut", range(1, 7))
def test_a_frame_begun_earlier_comes_first(cut: int, extra: bytes) -> None:
    head: list[Buffer] = [FRAMES[:cut]]
    run = Run(head, cut, FRAMES[cut:] + extra, 7 - cut, len(FRAMES) - cut, 3, 0)
    assert b"".join(run.pieces()) == FRAMES
    assert list(run.starts()) == [0, 7, 12]
    for size in (0, 1, 6, 8, 100):
        assert run.prefix(size) == FRAMES[:size]


def test_the_tail_is_copied_when_small_and_viewed_when_large() -> None:
    small = Run(None, 0, FRAMES + b"\0", 0, len(FRAMES), 3, 0)
    assert small.tail() == FRAMES
    body = b"x" * COPY_BELOW
    large = Run(None, 0, len(body).to_bytes(4, "big") + body + b"\0", 0, 4 + len(body), 1, 0)
    tail = large.tail()
    assert isinstance(tail, memoryview)
    assert (tail.obj is large.data, len(tail)) == (True, large.size)
    assert large.prefix(5) == large.data[:5]


@each_of(("size", "copied"), [(500, False), (499, True)])
def test_a_view_is_kept_while_it_is_half_of_what_it_holds(size: int, copied: bool) -> None:
    read = b"x" * 1000
    assert keep(read) is read
    for piece in (keep(memoryview(read)[:size]), shorten(read, 1000 - size), shorten(memoryview(read)[:size], 0)):
        assert (len(piece), isinstance(piece, bytes)) == (size, copied)
    assert shorten(read, 0) is read


def test_a_run_is_of_whole_frames_unless_it_says_which_piece_of_one_it_is() -> None:
    assert run_of(FRAMES, 3).part == 0
    last = Run(None, 0, b"end and more", 3, 3, 1, 0, PART | PART_LAST)
    assert (last.part, last.size, last.pieces()) == (5, 3, [b"end"])
    assert {PART, PART_FIRST, PART_LAST} == {1, 2, 4}
