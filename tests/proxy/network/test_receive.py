"""framegate.proxy.network.receive: the same runs however the bytes come, and every booked byte given back."""

import random
import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from librt.strings import BytesWriter

from framegate.proxy.network.framing import FRAME_TOO_LARGE, NEGATIVE_SIZE, NOT_OURS, OK, SASL_TOO_LARGE, Framing
from framegate.proxy.network.framings import VARINT, framing_of
from framegate.proxy.network.int32 import INT32
from framegate.proxy.network.memory_pool import BEGUN, PIECE_OVERHEAD, MemoryPool
from framegate.proxy.network.receive import JOIN_BELOW, NEVER_CUT, REFUSED_HEAD, VIEW_FROM, Receive, ReceiveLimit
from framegate.proxy.network.run import PART, PART_FIRST, PART_LAST, Run
from framegate.proxy.network.stats import SideStats
from tests.fakes.cases import each_of
from tests.fakes.clock import FakeClock
from tests.fakes.network import RecorderSink

FIRST_PIECE = 12  # of a frame that is cut through: the size header and eight bytes


def frame(size: int, fill: int = 0) -> bytes:
    return struct.pack(">i", size) + bytes([fill]) * size


class Bench:
    """A receive with its pool, and what it delivered."""

    def __init__(
        self, *, pool: int = 1 << 20, limit: int = -1, cut_from: int = NEVER_CUT, first_piece: int = FIRST_PIECE, framing: Framing = INT32
    ) -> None:
        self.pool = MemoryPool(pool, FakeClock().now_ns)
        self.limit = ReceiveLimit(limit)
        self.stats = SideStats()
        self.receive = Receive(self.pool.common, self.limit, self.stats, cut_from, first_piece, framing)
        self.runs: list[Run] = []

    def feed(self, data: bytes) -> Run | None:
        run = self.receive.feed(data)
        if run is not None:
            self.runs.append(run)
        return run

    def delivered(self) -> bytes:
        return b"".join(piece for run in self.runs for piece in run.pieces())

    def check_released(self) -> None:
        """Give back what the runs and the receive hold: nothing is booked then."""
        for run in self.runs:
            self.pool.common.release(BEGUN, run.lease)
            run.lease = 0
        self.receive.drop()
        assert self.pool.used == 0


def test_what_is_here_is_booked_and_not_what_is_announced() -> None:
    bench = Bench()
    assert bench.feed(frame(128)[:4]) is None
    assert (bench.receive.staged, bench.receive.size, bench.receive.missing()) == (4, 132, 128)
    assert bench.pool.used == bench.receive.booked == bench.pool.begun == 4 + PIECE_OVERHEAD


@each_of(("size", "fault"), [(9, OK), (10, OK), (11, FRAME_TOO_LARGE), (-1, NEGATIVE_SIZE), (-(2**31), NEGATIVE_SIZE)])
@each_of("cut", [0, 1, 2, 3, 4])
def test_a_size_is_judged_before_memory_is_taken(size: int, fault: int, cut: int) -> None:
    bench = Bench(limit=10)
    header = struct.pack(">i", size)
    bench.feed(frame(1) + header[:cut])
    bench.feed(header[cut:]) if cut < 4 else None
    assert bench.receive.fault == fault
    if fault != OK:
        assert bench.receive.faulty_size == size
        assert bench.delivered() == frame(1)
        bench.check_released()


def test_the_first_sixteen_bytes_of_a_refused_frame_are_kept_however_they_come() -> None:
    body = bytes(range(1, 30))
    wrong = {}
    for size in (11, -1):
        header = struct.pack(">i", size)
        for before in (b"", frame(1)):
            for cut in range(len(before), len(before) + 4):
                for there in range(4, 30):
                    bench = Bench(limit=10)
                    data = before + (header + body)[:there]
                    bench.feed(data[:cut]) if cut else None
                    bench.feed(data[cut:])
                    if bench.receive.refused_head != (header + body)[: min(there, REFUSED_HEAD)]:
                        wrong[size, before, cut, there] = bench.receive.refused_head
                    bench.check_released()
    assert wrong == {}
    assert REFUSED_HEAD == 16


def test_the_limit_in_force_at_the_fourth_header_byte_decides() -> None:
    bench = Bench(limit=10)
    bench.feed(frame(11)[:3])
    bench.limit.value = 11
    bench.feed(frame(11)[3:5])
    bench.limit.value = 1
    run = bench.feed(frame(11)[5:])
    assert run is not None
    assert bench.receive.fault == OK
    bench.feed(frame(2))
    assert bench.receive.fault == FRAME_TOO_LARGE


class Reports(RecorderSink):
    """Remembers the sizes that it is told."""

    def __init__(self) -> None:
        super().__init__(None)
        self.sizes: list[tuple[int, bytes]] = []

    def frame_reported(self, size: int, head: bytes) -> None:
        self.sizes.append((size, head))


@each_of("framing", [INT32, VARINT, framing_of("int32_inclusive", None, {})])
def test_sizes_between_the_limit_and_what_is_passed_are_reported_once_however_they_are_read(framing: Framing) -> None:
    def framed(size: int) -> bytes:
        writer = BytesWriter()
        framing.write_header(writer, size, b"")
        return writer.getvalue() + bytes(size)

    wrong = {}
    for cut_from in (NEVER_CUT, 15):
        for sizes in ([10, 11, 5, 20, 12, 3], [11], [20, 20], [4, 21], [11, 21, 4], [20, 10]):
            data = b"".join(map(framed, sizes))
            good = sizes[: sizes.index(21)] if 21 in sizes else sizes
            for first in range(len(data)):
                bench = Bench(limit=10, cut_from=cut_from, framing=framing)
                bench.limit.passed_to = 20
                told = bench.receive.reports_to = Reports()
                left = data
                for size in (first, len(data)):
                    piece, left = left[:size], left[size:]
                    while piece and bench.receive.fault == OK:
                        reach = min(len(piece), bench.receive.missing()) if bench.receive.cut else len(piece)
                        bench.feed(piece[:reach])
                        piece = piece[reach:]
                        while bench.receive.has_part:
                            bench.runs.append(bench.receive.take_part())
                fault = (FRAME_TOO_LARGE, 21) if 21 in sizes else (OK, 0)
                found = (bench.delivered(), [size for size, _ in told.sizes], (bench.receive.fault, bench.receive.faulty_size))
                if found != (b"".join(map(framed, good)), [size for size in good if size > 10], fault):
                    wrong[cut_from, tuple(sizes), first] = found
                counted = sum(bench.stats.frame_sizes)
                if counted != len(good):
                    wrong[cut_from, tuple(sizes), first, "counted"] = counted
                bench.check_released()
    assert wrong == {}


def test_what_is_passed_is_never_more_than_a_framing_can_say_and_an_unsound_size_is_refused() -> None:
    for size, fault in ((20, OK), (21, FRAME_TOO_LARGE), (2**31 - 1, FRAME_TOO_LARGE), (-1, NEGATIVE_SIZE), (-(2**31), NEGATIVE_SIZE)):
        for before in (b"", frame(1)):
            bench = Bench(limit=10)
            bench.limit.passed_to = 20
            bench.feed(before + struct.pack(">i", size))
            assert (bench.receive.fault, bench.receive.most) == (fault, 20)
            bench.check_released()
    narrow = Receive(Bench().pool.common, ReceiveLimit(10), SideStats(), framing=INT32, onward=framing_of("int16", None, {}))
    narrow.max_size.passed_to = 1 << 20
    assert (narrow.limit, narrow.most) == (10, 2**15 - 1)


@each_of("first", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_another_protocol_is_known_by_its_first_bytes_only(first: bytes) -> None:
    for limit in (-1, 10):
        whole, split = Bench(limit=limit), Bench(limit=limit)
        whole.feed(first)
        split.feed(first[:2])
        split.feed(first[2:])
        for bench in (whole, split):
            assert bench.receive.fault == NOT_OURS
            assert bench.receive.foreign in ("HTTP", "TLS")
            bench.check_released()
    later = Bench(limit=10)
    later.feed(frame(1) + first)
    assert later.receive.fault == FRAME_TOO_LARGE


def test_dropping_gives_back_once() -> None:
    bench = Bench()
    run = bench.feed(frame(3) + frame(500)[:104])
    assert run is not None
    assert bench.pool.used == 104 + PIECE_OVERHEAD
    assert bench.receive.drop() == 104
    assert bench.receive.drop() == 0
    assert bench.pool.used == 0


def test_small_pieces_are_joined_and_large_ones_are_not_copied() -> None:
    bench = Bench()
    data = frame(10 * JOIN_BELOW)
    for position in range(0, JOIN_BELOW, 16):
        bench.feed(data[position : position + 16])
    assert bench.receive.booked == JOIN_BELOW + PIECE_OVERHEAD
    large = data[JOIN_BELOW : 3 * JOIN_BELOW]
    bench.feed(large)
    assert bench.receive.booked == 3 * JOIN_BELOW + 2 * PIECE_OVERHEAD
    run = bench.feed(data[3 * JOIN_BELOW :])
    assert run is not None
    assert run.pieces()[1] is large
    bench.check_released()


def test_a_view_is_kept_only_when_it_is_most_of_what_it_holds() -> None:
    bench = Bench()
    rest = frame(VIEW_FROM * 4)[:VIEW_FROM]
    bench.feed(frame(VIEW_FROM * 2) + rest)
    run = bench.feed(frame(VIEW_FROM * 4)[VIEW_FROM:])
    assert run is not None
    assert isinstance(run.pieces()[0], bytes)
    bench.feed(frame(10) + rest)
    run = bench.feed(frame(VIEW_FROM * 4)[VIEW_FROM:])
    assert run is not None
    assert isinstance(run.pieces()[0], memoryview)


# Cut through.


class Cutting(Bench):
    """A bench whose runs may be pieces; what is said of them is checked as they come."""

    within = False

    def take(self, run: Run | None) -> None:
        if run is None:
            return
        self.runs.append(run)
        if not run.part:
            assert run.frames >= 1
            assert not self.within, "whole frames never come within a frame in pieces"
            return
        assert run.part & PART
        assert bool(run.part & PART_FIRST) is not self.within, "the first piece is the first"
        assert (run.frames, run.first) == (1 if run.part & PART_LAST else 0, run.end)
        if run.part & PART_FIRST and not run.part & PART_LAST:
            assert run.size >= FIRST_PIECE
        self.within = not run.part & PART_LAST
        assert (self.receive.passed != 0) is self.within

    def check(self) -> None:
        receive = self.receive
        assert self.pool.used == receive.booked + sum(run.lease for run in self.runs)
        assert receive.booked >= receive.staged
        assert (receive.booked == 0) is (receive.staged == 0)


def frame_at(data: bytes, position: int) -> bytes:
    return data[position : position + 4 + int.from_bytes(data[position : position + 4], "big")]


@settings(max_examples=150)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, 8, 9, 255, 5000, 40_000]), min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
    most=st.integers(1, 30_000),
    cut_from=st.sampled_from([0, 4, 12, 100, 4096, 20_000, NEVER_CUT]),
    first_piece=st.sampled_from([FIRST_PIECE, 13, 4096]),
)
def test_any_split_and_any_cut_gives_the_same_bytes(sizes: list[int], seed: int, most: int, cut_from: int, first_piece: int) -> None:
    """Cut by their size, or on demand at any time; pieces come in order, of one frame at a time, and say what they are."""
    first_piece = min(first_piece, max(cut_from, FIRST_PIECE))
    bench = Cutting(pool=1 << 30, cut_from=cut_from, first_piece=first_piece)
    receive = bench.receive
    data = b"".join(frame(size, index) for index, size in enumerate(sizes))
    chooser = random.Random(seed)
    position = 0
    while position < len(data):
        if receive.within and receive.size >= 0 and not receive.cut and chooser.random() < 0.2:
            receive.cut_now(chooser.choice([1, 20, 5000]))
        elif not receive.within and chooser.random() < 0.2 and (left := len(frame_at(data, position))) > FIRST_PIECE:
            receive.cut_next(chooser.choice([1, 20, 5000]))
            size = chooser.randint(1, min(left - 1, most))
            bench.take(receive.feed(data[position : position + size]))
            position += size
            bench.check()
            continue
        if receive.has_part:
            bench.take(receive.take_part())
            bench.check()
            continue
        size = max(chooser.randint(1, most), len(data) // 1000)
        if receive.cut or chooser.random() < 0.3:
            size = min(size, int(receive.missing()))
        bench.take(receive.feed(data[position : position + size]))
        position += size
        bench.check()
    while receive.has_part:
        bench.take(receive.take_part())
    assert bench.delivered() == data
    assert sum(run.frames for run in bench.runs) == len(sizes) == sum(bench.stats.frame_sizes)
    assert not receive.within
    bench.check_released()


def test_a_frame_over_the_edge_is_cut_and_one_at_it_is_not() -> None:
    for size, cut in ((100, False), (101, True)):
        bench = Bench(cut_from=100)
        assert bench.receive.cuts(size) is cut
        run = bench.feed(frame(size - 4)[:50])
        assert (run is not None, bench.receive.cut) == (cut, cut)
        run = bench.feed(frame(size - 4)[50:])
        assert run is not None
        assert (run.part, run.frames, run.size) == ((PART | PART_LAST, 1, size - 50) if cut else (0, 1, size))
        bench.check_released()


@each_of(("first", "comes"), [(FIRST_PIECE - 1, False), (FIRST_PIECE, True), (FIRST_PIECE + 1, True)])
def test_the_first_piece_waits_until_it_is_large_enough(first: int, comes: bool) -> None:
    bench = Bench(cut_from=100)
    run = bench.feed(frame(200)[:first])
    assert (run is not None) is comes
    assert bench.receive.unit() == (1 if comes else FIRST_PIECE - first)
    run = bench.feed(frame(200)[first : first + 1])
    assert run is not None
    assert run.size == (1 if comes else first + 1)
    assert bench.receive.drop() == 0
    bench.check_released()


def test_the_beginning_of_a_cut_frame_behind_whole_ones_is_asked_for() -> None:
    bench = Bench(cut_from=100)
    run = bench.feed(frame(5) + frame(200)[:80])
    assert run is not None
    assert (run.frames, run.size, bench.receive.has_part) == (1, 9, True)
    part = bench.receive.take_part()
    assert part is not None
    assert (part.size, part.part, part.lease) == (80, PART | PART_FIRST, 80 + PIECE_OVERHEAD)
    assert bench.receive.take_part() is None
    assert (bench.receive.missing(), bench.receive.within, bench.receive.booked) == (124, True, 0)
    bench.runs.append(part)
    bench.check_released()


def test_dropping_within_a_cut_frame_says_only_what_is_lost_here() -> None:
    bench = Bench(cut_from=100, first_piece=50)
    assert bench.feed(frame(200)[:40]) is None
    assert bench.receive.drop() == 40
    bench = Bench(cut_from=100, first_piece=50)
    assert bench.feed(frame(200)[:60]) is not None
    assert (bench.receive.passed, bench.receive.drop()) == (60, 0)
    assert not bench.receive.within
    bench.check_released()


def test_the_next_frame_is_not_cut_for_the_last_one() -> None:
    bench = Bench()
    bench.receive.cut_next(20)
    assert bench.feed(frame(100)[:30]) is not None
    assert bench.feed(frame(100)[30:]) is not None
    assert bench.feed(frame(100)[:30]) is None
    assert not bench.receive.cut
    bench.check_released()


@each_of("cut_from", [NEVER_CUT, 600])
def test_a_large_frame_to_authenticate_with_is_refused_before_it_is_held_or_handed_out(cut_from: int) -> None:
    """However its beginning comes; at the limit, and a byte above it; behind whole frames, and not the key of another request."""
    wrong = []
    for key in (3, 17, 18, 36):
        for size in (1000, 1001):
            for before in (b"", frame(3)):
                for first in range(1, 16):
                    pool = MemoryPool(1 << 20, FakeClock().now_ns)
                    receive = Receive(pool.common, ReceiveLimit(-1), SideStats(), cut_from, FIRST_PIECE, sasl_limit=1000)
                    data = frame(2, 1) + before + struct.pack(">ih", size, key) + bytes(size - 2)
                    begin, at = len(data) - size - 4, 0
                    handed = 0
                    for end in (begin + first, begin + first + 8, len(data)):
                        if receive.fault == OK:
                            run = receive.feed(data[at:end])
                            handed += 0 if run is None else run.size
                            pool.common.release(BEGUN, 0 if run is None else run.lease)
                        at = end
                    refused = key in (17, 36) and size == 1001
                    lost = receive.drop() + receive.refused_bytes
                    right = (SASL_TOO_LARGE, begin, 1001) if refused else (OK, len(data), 0)
                    held = 6 <= lost <= first + 8 if refused else lost == 0
                    if (receive.fault, handed, receive.faulty_size) != right or not held or pool.used != 0:
                        wrong.append((key, size, len(before), first, receive.fault, handed, lost, pool.used))
    assert wrong == []
