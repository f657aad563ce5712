"""framegate.proxy.network.lines: frames that end where a line does."""

from framegate.proxy.network.framing import FRAME_TOO_LARGE, OK
from framegate.proxy.network.lines import LINES, LINES_CRLF, LineFraming
from framegate.proxy.network.memory_pool import MemoryPool
from framegate.proxy.network.receive import Receive, ReceiveLimit
from framegate.proxy.network.stats import SideStats
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock


def receive(framing: LineFraming, limit: int = 100) -> Receive:
    return Receive(MemoryPool(1 << 20, FakeClock().now_ns).common, ReceiveLimit(limit), SideStats(), 0, 0, framing)


@each_of("framing", [LINES, LINES_CRLF])
@each_of("step", [1, 3, 1000])
def test_the_longest_line_counts_its_body_only(framing: LineFraming, step: int) -> None:
    for size, fault in ((9, OK), (10, OK), (11, FRAME_TOO_LARGE)):
        reader = receive(framing, 10)
        data = b"ab" + framing.delimiter + b"x" * size + framing.delimiter
        frames = 0
        for at in range(0, len(data), step):
            if reader.fault == OK:
                run = reader.feed(data[at : at + step])
                frames += 0 if run is None else int(run.frames)
        assert (reader.fault, frames) == (fault, 2 if fault == OK else 1)


@each_of("framing", [LINES, LINES_CRLF])
def test_a_line_without_an_end_is_refused_when_no_end_can_save_it(framing: LineFraming) -> None:
    for size, fault in ((10, OK), (9 + len(framing.delimiter), OK), (10 + len(framing.delimiter), FRAME_TOO_LARGE)):
        whole = receive(framing, 10)
        whole.feed(b"x" * size)
        bytewise = receive(framing, 10)
        for _ in range(size):
            if bytewise.fault == OK:
                bytewise.feed(b"x")
        behind = receive(framing, 10)
        behind.feed(b"ab" + framing.delimiter + b"x" * size)
        assert whole.fault == bytewise.fault == behind.fault == fault


@each_of(("framing", "data", "reach"), [(LINES, b"ab\ncd\n", 3), (LINES_CRLF, b"a\nb\r\nc", 5), (LINES, b"abc", 3), (LINES, b"", 0)])
def test_what_belongs_to_the_frame_begun_ends_with_its_line(framing: LineFraming, data: bytes, reach: int) -> None:
    assert receive(framing).reach(data) == reach


def test_an_end_in_two_reads_ends_the_frame_begun_and_no_other() -> None:
    reader = receive(LINES_CRLF)
    reader.feed(b"abc\r")
    assert (reader.reach(b"\nnext\r\n"), reader.reach(b"x\nnext\r\n"), reader.reach(b"\r\nnext")) == (1, 8, 2)
    run = reader.feed(b"\n")
    assert run is not None
    assert (run.frames, reader.reach(b"\nnext\r\n")) == (1, 7)


def test_of_a_line_begun_nobody_knows_more_than_one_byte() -> None:
    reader = receive(LINES)
    assert (reader.missing(), reader.longest()) == (1, 102)
    reader.feed(b"abc")
    assert (reader.missing(), reader.size, reader.staged, reader.can_cut) == (1, -1, 3, False)


@each_of(("framing", "size"), [(LINES, 12), (LINES_CRLF, 11)])
def test_the_size_that_is_told_of_a_line_that_is_too_long_is_that_of_its_body(framing: LineFraming, size: int) -> None:
    """What may be the first byte of its end is none of the body."""
    data = b"x" * 11 + b"\r"
    for reads in ((data,), (data[:4], data[4:]), (b"ab" + framing.delimiter + data,)):
        reader = receive(framing, 10)
        for read in reads:
            reader.feed(read)
        assert (reader.fault, reader.faulty_size) == (FRAME_TOO_LARGE, size)
