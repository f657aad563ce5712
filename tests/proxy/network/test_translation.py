"""proxy.network.translation: every pair of framings, any frames, any splitting of the reads, against the formats as they are written down."""

import itertools
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from framegate.proxy.network.framing import OK
from framegate.proxy.network.framings import FRAMINGS, FixedHeaderFraming
from framegate.proxy.network.int32 import INT32
from framegate.proxy.network.memory_pool import BEGUN, MemoryPool
from framegate.proxy.network.receive import NEVER_CUT, Receive, ReceiveLimit
from framegate.proxy.network.run import PART, PART_FIRST, Run
from framegate.proxy.network.stats import SideStats
from framegate.proxy.network.translation import KEPT, REFER_FROM, WRITE_FROM, Scratch, Translation
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.fakes.framing_model import MODELS, stream
from tests.fakes.network import run_of

PAIRS = list(itertools.product(MODELS, repeat=2))
LARGE = [WRITE_FROM - 1, WRITE_FROM, WRITE_FROM + 1, REFER_FROM - 1, REFER_FROM, REFER_FROM + 1, 32_767]
SCRATCH = Scratch()  # one for all, as in a processor
body = st.binary(max_size=40) | st.integers(0, 600).map(bytes) | st.sampled_from(LARGE).map(lambda size: b"ab" * (size // 2) + b"c" * (size % 2))


def of(name: str, frames: list[bytes]) -> list[bytes]:
    delimiter = FRAMINGS[name].delimiter
    return [frame for frame in frames if not delimiter or delimiter not in frame + (delimiter[:-1] if delimiter[:-1] else b"")]


class Line:
    """A side that reads, and what it reads in the framing of the other side."""

    def __init__(self, source: str, target: str, cut_from: int = NEVER_CUT, limit: int = 1 << 20) -> None:
        self.pool = MemoryPool(1 << 24, FakeClock().now_ns)
        self.receive = Receive(self.pool.common, ReceiveLimit(limit), SideStats(), cut_from, 0, FRAMINGS[source], FRAMINGS[target])
        self.translation = Translation(FRAMINGS[source], FRAMINGS[target], SCRATCH)
        self.out = b""
        self.frames = 0

    def feed(self, data: bytes) -> None:
        run = self.receive.feed(data)
        while run is not None:
            other = self.translation.frames(run) if run.part == 0 else self.translation.part(run)
            assert other.size == sum(len(piece) for piece in other.pieces())
            assert (other.frames, other.part) == (run.frames, run.part)
            self.out += b"".join(other.pieces())
            self.frames += int(other.frames)
            self.pool.common.release(BEGUN, run.lease)
            run = self.receive.take_part()


@settings(max_examples=120, deadline=None)
@given(
    pair=st.sampled_from(PAIRS),
    frames=st.lists(body, min_size=1, max_size=8),
    reads=st.lists(st.integers(1, 5000) | st.integers(1, 12), min_size=1, max_size=6),
    cut_from=st.sampled_from([NEVER_CUT, NEVER_CUT, 0, 500]),
)
def test_frames_are_the_same_in_the_other_framing(pair: tuple[str, str], frames: list[bytes], reads: list[int], cut_from: int) -> None:
    source, target = pair
    frames = of(source, of(target, frames))
    line = Line(source, target, cut_from)
    data = stream(source, frames)
    position = slot = 0
    while position < len(data):
        count = reads[slot % len(reads)]
        if line.receive.is_within_cut or line.receive.cut:
            count = min(count, line.receive.missing())
        line.feed(data[position : position + count])
        position += count
        slot += 1
        assert line.receive.fault == OK
    assert (line.out, line.frames) == (stream(target, frames), len(frames))
    assert line.pool.used == 0


@each_of("target", ["int16", "mysql_packet"])
def test_what_does_not_fit_the_other_side_is_refused_by_its_header(target: str) -> None:
    most = FRAMINGS[target].max_body
    for size, good in ((most - 1, True), (most, True), (most + 1, False)):
        line = Line("int32", target, limit=1 << 30)
        line.feed(struct.pack(">i", size))
        assert (line.receive.fault == OK) == good
        assert line.receive.limit == most


@each_of(("target", "bad"), [("lines", b"a\nb"), ("lines", b"\n"), ("lines_crlf", b"a\r\nb")])
@each_of("split", [0, 3, 5])
def test_a_body_that_holds_the_end_of_a_line_stops_there(target: str, bad: bytes, split: int) -> None:
    translation = Translation(INT32, FRAMINGS[target], SCRATCH)
    for before in ([], [b"one", b"two"]):
        data = stream("int32", [*before, bad, b"three"])
        first = len(MODELS["int32"]((before or [bad])[0]))
        run = Run([data[:split]] if split else None, split, data[split:], first - split if split else 0, len(data) - split, len(before) + 2, 0)
        other = translation.frames(run)
        assert b"".join(other.pieces()) == stream(target, before)
        assert (translation.stopped_at, other.frames) == (len(before), len(before))
    assert translation.frames(Run(None, 0, data[: first * 2], 0, 2 * first, 2, 0)).frames == 2
    assert translation.stopped_at == -1


@each_of("target", ["lines", "lines_crlf"])
def test_what_ends_a_line_may_be_in_a_header(target: str) -> None:
    bodies = [b"x" * 10, b"y" * 0x0D0A, b"z" * 2570]
    translation = Translation(INT32, FRAMINGS[target], SCRATCH)
    for bad in ([], [b"a" + FRAMINGS[target].delimiter]):
        data = stream("int32", [*bodies, *bad])
        other = translation.frames(Run(None, 0, data, 0, len(data), 3 + len(bad), 0))
        assert b"".join(other.pieces()) == stream(target, bodies)
        assert translation.stopped_at == (3 if bad else -1)


@each_of(("target", "at", "good"), [("lines", 2 * REFER_FROM, False), ("lines_crlf", 2 * REFER_FROM, False), ("lines", 0, True)])
def test_what_ends_a_line_is_found_in_a_large_body_in_pieces(target: str, at: int, good: bool) -> None:
    delimiter = FRAMINGS[target].delimiter
    body = bytearray(b"\r" * 3 * REFER_FROM)
    if not good:
        body[at - 1 : at - 1 + len(delimiter)] = delimiter  # of two bytes: one in each piece
    data = stream("int32", [bytes(body)])
    head: list[bytes | memoryview] = [data[:9], memoryview(data)[9 : 4 + at], data[4 + at : -5]]
    if not at:
        head = [data[:9], data[9:-5]]
    other = Translation(INT32, FRAMINGS[target], SCRATCH).frames(Run(head, len(data) - 5, data[-5:], 5, 5, 1, 0))
    assert b"".join(other.pieces()) == (bytes(body) + delimiter if good else b"")


@each_of(("source", "target"), [("lines", "int32"), ("int32", "lines"), ("lines_crlf", "varint"), ("varint", "grpc_message")])
@each_of("joins", [False, True])
def test_a_large_body_that_came_in_pieces_is_not_copied(source: str, target: str, joins: bool) -> None:
    data = stream(source, [b"x" * 5 * REFER_FROM])
    cuts = [0, 1, 2 * REFER_FROM, 4 * REFER_FROM]
    head = [data[begin:end] for begin, end in itertools.pairwise(cuts)]
    last = data[cuts[-1] :]
    run = Run([*head], cuts[-1], last, len(last), len(last), 1, 0, 0, FRAMINGS[source])
    other = Translation(FRAMINGS[source], FRAMINGS[target], SCRATCH, joins=joins).frames(run)
    pieces = other.pieces()
    assert b"".join(pieces) == stream(target, [b"x" * 5 * REFER_FROM])
    kept = [piece.obj if isinstance(piece, memoryview) else piece for piece in pieces]
    assert any(piece is head[1] for piece in kept)
    assert any(piece is head[2] for piece in kept)


def test_a_large_frame_in_pieces_is_not_joined_and_the_frames_behind_it_are_one_buffer() -> None:
    large, packets = b"x" * 3 * REFER_FROM, b"".join(stream("mysql_packet", [body]) for body in (b"one", b"", b"three"))
    data = stream("mysql_packet", [large])
    run = Run([data[:1], data[1:-7]], len(data) - 7, data[-7:] + packets, 7, 7 + len(packets), 4, 0, 0, FRAMINGS["mysql_packet"])
    seen = Translation(FRAMINGS["mysql_packet"], INT32, SCRATCH, joins=True).frames(run)
    assert b"".join(seen.pieces()) == stream("int32", [bytes([number]) + body for number, body in seen_bodies(data + packets)])
    assert seen.data == stream("int32", [bytes([number]) + body for number, body in seen_bodies(packets)])
    assert [int(start) for start in seen.starts()] == [0, 5 + len(large), 5 + len(large) + 8, 5 + len(large) + 13]


def seen_bodies(packets: bytes) -> list[tuple[int, bytes]]:
    """Number and body of each of MySQL's packets."""
    found = []
    while packets:
        size = int.from_bytes(packets[:3], "little")
        found.append((packets[3], packets[4 : 4 + size]))
        packets = packets[4 + size :]
    return found


def test_what_translations_write_into_is_empty_for_each_and_never_stays_large() -> None:
    scratch = Scratch()
    writer = scratch.writer
    translation = Translation(INT32, FRAMINGS["varint"], scratch)
    writer.write(b"left by one that failed")
    few = stream("int32", [b"a", b"b"])
    assert translation.frames(run_of(few, 2)).data == stream("varint", [b"a", b"b"])
    assert scratch.writer is writer
    many = stream("int32", [bytes(1000)] * (KEPT // 1000 + 1))
    assert translation.frames(Run(None, 0, many, 0, len(many), KEPT // 1000 + 1, 0)).size > KEPT
    assert scratch.writer is not writer, "a buffer does not shrink"


@each_of("body", [b"\r", b"a\n", b"\ra\rb\r"])
def test_crlf_is_one_delimiter(body: bytes) -> None:
    line = Line("lines_crlf", "int32")
    for byte in stream("lines_crlf", [body, b"", b"x"]):
        line.feed(bytes([byte]))
    assert line.out == stream("int32", [body, b"", b"x"])


def test_other_bytes_of_a_header_are_kept_set_or_dropped() -> None:
    grpc, mysql = FRAMINGS["grpc_message"], FRAMINGS["mysql_packet"]
    packets = b"".join(bytes([len(body), 0, 0, number]) + body for number, body in enumerate((b"one", b"", b"three")))
    run = Run(None, 0, packets, 0, len(packets), 3, 0, 0, mysql)
    for target, flags in ((grpc, (0, 1, 2)), (FixedHeaderFraming("header", header=5, offset=1, keeps=False), (0, 0, 0))):
        out = b"".join(Translation(mysql, target, SCRATCH).frames(run).pieces())
        assert out == b"".join(struct.pack(">Bi", flag, len(body)) + body for flag, body in zip(flags, (b"one", b"", b"three"), strict=True))
    filled = FixedHeaderFraming("header", header=6, offset=2, width=2, fill=b"\x01\x02\x03\x04")
    assert b"".join(Translation(mysql, filled, SCRATCH).frames(run).pieces())[:9] == b"\x01\x02\x00\x03\x03\x04one"
    assert b"".join(Translation(mysql, INT32, SCRATCH).frames(run).pieces()) == stream("int32", [b"one", b"", b"three"])


def test_joined_frames_are_whole_with_the_other_bytes_in_front() -> None:
    mysql = FRAMINGS["mysql_packet"]
    look = Translation(mysql, INT32, SCRATCH, joins=True)
    large = b"x" * 70_000
    packets = b"".join(len(body).to_bytes(3, "little") + bytes([number]) + body for number, body in enumerate((b"one", large, b"")))
    run = Run([packets[:2]], 2, packets[2:], 5, len(packets) - 2, 3, 0, 0, mysql)
    seen = look.frames(run)
    assert seen.head is None
    assert seen.data == stream("int32", [b"\0one", b"\1" + large, b"\2"])
    assert [int(start) for start in seen.starts()] == [0, 8, 8 + 70_005]
    first = Run(None, 0, packets[:20], 20, 20, 0, 0, PART | PART_FIRST, mysql)
    assert look.part(first).data == struct.pack(">i", 4) + packets[3:20]
    assert look.part(first).first_sizes() == (4, 4)


@each_of("spare", [0, 1, 7, 8])
def test_copies_do_not_look_behind_the_run(spare: int) -> None:
    for size in range(30):
        data = stream("int32", [bytes(range(size))]) + b"z" * spare
        run = Run(None, 0, data, 0, len(data) - spare, 1, 0)
        assert b"".join(Translation(INT32, FRAMINGS["varint"], SCRATCH).frames(run).pieces()) == stream("varint", [bytes(range(size))])
