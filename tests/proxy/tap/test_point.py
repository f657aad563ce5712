import hashlib
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.network.run import PART_FIRST, PART_LAST, Run
from framegate.proxy.tap import record
from framegate.proxy.tap.log_block import LogBlock
from framegate.proxy.tap.rules import TapRules
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.cases import each_of
from tests.fakes.runs import framed, piece_of, pieces_of, run_of
from tests.fakes.tap_log import ints
from tests.fakes.tap_read import Frame, frames_in, read_blocks

BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=12)


class Tap:
    """One point of one writer, written in the caller's thread."""

    def __init__(self, folder: Path, rule: TapRule, protocol: str = "framed", direction: int = record.DIRECTION_REQUEST) -> None:
        self.writer = TapWriter(TapConfig(directory=str(folder)), "edge", "0", "b0")
        found = TapRules((rule,), self.writer).match("main", protocol, direction, "CN=a", "10.0.0.1:5", 77)
        assert found is not None
        self.point = found
        self.folder = folder

    def read(self) -> list[LogBlock]:
        """The blocks that have chunks; the totals that closing adds are ``test_tallies``'s."""
        assert self.writer.flush_and_close(1000)
        blocks = list(read_blocks(str(self.folder), self.writer.stream))
        for block in blocks:
            block.rows = [row for row in block.rows if row.kind != record.KIND_TOTALS]
        return [block for block in blocks if block.rows]

    def frames(self) -> list[Frame]:
        return [frame for block in self.read() for frame in frames_in(block)]


def runs() -> st.SearchStrategy[Run]:
    """Runs as reads give them: the first frame begun earlier or not, the next one begun or not."""

    @st.composite
    def build(draw: st.DrawFn) -> Run:
        bodies = draw(BODIES)
        left = len(bodies[0]) + 3
        head = []
        for size in draw(st.lists(st.integers(1, 20), max_size=3)):
            if size <= left:
                head.append(size)
                left -= size
        return run_of(bodies, head=head, behind=draw(st.binary(max_size=10)))

    return build()


def bodies_of(run: Run) -> list[bytes]:
    raw = b"".join(run.pieces())
    bodies = []
    while raw:
        size = int.from_bytes(raw[:4], "big")
        bodies.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    return bodies


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_runs=st.lists(runs(), min_size=1, max_size=6))
def test_every_frame_comes_back_exactly_whatever_the_reads(tmp_path_factory: pytest.TempPathFactory, given_runs: list[Run]) -> None:
    tap = Tap(tmp_path_factory.mktemp("log"), TapRule(name="all"))
    expected: list[tuple[int, bytes]] = []
    for run in given_runs:
        first = len(expected)
        assert tap.point.append(run, first, 1000 + first)
        expected.extend((first + index, body) for index, body in enumerate(bodies_of(run)))
    found = tap.frames()
    assert [(frame.number, frame.body) for frame in found] == expected
    assert all(frame.size == len(frame.body) for frame in found)
    assert tap.writer.frames_matched_request == tap.writer.thread.frames_flushed_request == len(expected)
    assert tap.writer.bytes_matched == sum(run.size for run in given_runs)


def test_a_chunk_is_the_run_raw_with_the_facts_of_its_connection(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"), protocol="kafka")
    tap.point.append(run_of([b"one", b"", b"three"]), 40, 5000)
    (block,) = tap.read()
    (row,) = block.rows
    assert block.chunk_data(row) == framed([b"one", b"", b"three"])
    assert list(block.starts(row)) == [0, 7, 11]
    assert block.sizes(row) is None
    assert block.answers(row) is None
    assert (row.capture_ns, row.connection, row.first_frame, row.frame_count, row.original_bytes) == (5000, 77, 40, 3, 20)
    assert (row.kind, row.capture, row.reason, row.flags, row.lost_bytes) == (record.KIND_FRAMES, record.CAPTURE_FULL, 0, 0, 0)
    assert (row.direction, row.protocol, row.framing) == (record.DIRECTION_REQUEST, record.PROTOCOL_KAFKA, record.FRAMING_INT32)
    assert [block.word(index) for index in (row.listener, row.principal, row.peer, row.rule)] == ["main", "CN=a", "10.0.0.1:5", "all"]


def test_large_payload_is_referenced_and_comes_back(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"))
    big = bytes(range(256)) * 4096
    tap.point.append(run_of([b"small"]), 0, 1)
    tap.point.append(run_of([big], head=[1, 1, 60_000, 100_000]), 1, 2)
    tap.point.append(run_of([b"after", big], behind=b"\0\0"), 2, 3)
    assert [frame.body for frame in tap.frames()] == [b"small", big, b"after", big]


def test_capture_time_never_decreases_not_even_over_blocks(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"))
    for number, capture_ns in enumerate([500, 400, 600, 100]):
        tap.point.append(run_of([b"x"]), number, capture_ns)
        tap.writer.poll_due(1)
        tap.writer.poll_due(10**9)
    assert [frame.capture_ns for frame in tap.frames()] == [500, 500, 600, 600]


RULES = st.one_of(
    st.builds(TapRule, name=st.just("r"), max_frame_bytes=st.integers(0, 50)),
    st.builds(TapRule, name=st.just("r"), capture=st.sampled_from(["lengths", "hash"])),
)


def kept_of(rule: TapRule, body: bytes, withheld: bool = False) -> bytes:
    """The part of a body that the log keeps."""
    if withheld or rule.capture == "lengths":
        return b""
    if rule.capture == "hash":
        return hashlib.blake2b(body, digest_size=16).digest()
    return body[: rule.max_frame_bytes or None]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs(), rule=RULES, data=st.data())
def test_of_each_body_the_log_has_what_the_rule_keeps_its_size_and_nothing_of_credentials(
    tmp_path_factory: pytest.TempPathFactory, run: Run, rule: TapRule, data: st.DataObject
) -> None:
    tap = Tap(tmp_path_factory.mktemp("log"), rule)
    bodies = bodies_of(run)
    withheld = data.draw(st.sets(st.integers(0, len(bodies) - 1)))
    tap.point.append(run, 0, 1, ints(sorted(withheld)))
    (block,) = tap.read()
    (row,) = block.rows
    kept = [kept_of(rule, body, index in withheld) for index, body in enumerate(bodies)]
    assert [(frame.size, frame.body) for frame in frames_in(block)] == [(len(body), part) for body, part in zip(bodies, kept, strict=True)]
    if rule.capture == "full" and not rule.max_frame_bytes and not withheld:
        assert (block.sizes(row), row.flags, row.lost_bytes, row.reason) == (None, 0, 0, record.REASON_NONE)
        return
    assert list(block.sizes(row) or []) == [len(body) for body in bodies]
    stored = sum(map(len, kept)) if rule.capture == "full" else 0  # a hash is not a part of its body
    lost = sum(map(len, bodies)) - stored
    cut = any(rule.max_frame_bytes and len(body) > rule.max_frame_bytes for index, body in enumerate(bodies) if index not in withheld)
    assert (row.original_bytes, row.lost_bytes) == (run.size, lost)
    assert (bool(row.flags & record.FLAG_TRUNCATED), bool(row.flags & record.FLAG_WITHHELD)) == (cut, bool(withheld))
    assert row.reason == (record.REASON_WITHHELD if withheld else record.REASON_CAPTURE if lost else record.REASON_NONE)


def test_a_canary_in_a_sensitive_frame_never_reaches_the_disk(tmp_path: Path) -> None:
    canary = b"correct horse battery staple"
    tap = Tap(tmp_path, TapRule(name="all"), protocol="kafka")
    tap.point.append(run_of([b"before", canary, b"after"], head=[2]), 0, 1, ints([1]))
    tap.point.append(run_of([canary * 4000], head=[5, 1000, 70_000]), 3, 2, ints([0]))
    assert [frame.body for frame in tap.frames()] == [b"before", b"", b"after", b""]
    assert [path for path in tmp_path.rglob("*") if path.is_file() and canary in path.read_bytes()] == []


def test_answers_carry_request_keys_and_latencies(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"), protocol="kafka", direction=record.DIRECTION_RESPONSE)
    tap.point.append(run_of([b"a", b"b"]), 0, 1, None, ints([18 << 16 | 4, -1]), ints([250, -1]))
    tap.point.append(run_of([b"c"]), 2, 2)
    tap.point.append(run_of([b"d"]), 3, 3, ints([0]), ints([17 << 16]), ints([9]))
    found = tap.frames()
    assert [(frame.request_key, frame.latency_us) for frame in found] == [(18 << 16 | 4, 250), (-1, -1), (None, None), (17 << 16, 9)]
    assert [frame.body for frame in found] == [b"a", b"b", b"c", b""]
    assert tap.writer.frames_matched_response == 4


def test_a_connection_outside_the_sample_is_counted_as_a_gap(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="half", sample_connections=0.0))
    for number in range(3):
        assert tap.point.append(run_of([b"abc"]), number, 100 + number)
    append_parts(tap, bytes(200), [50, 50], number=3)
    (block,) = tap.read()
    (gap,) = block.gaps()
    assert (gap.reason, gap.frames, gap.bytes, gap.first_frame, gap.from_ns, gap.connection) == ("sampled", 4, 21 + 204, 0, 100, 77)
    assert tap.writer.dropped_sampled == tap.writer.frames_matched_request == tap.writer.thread.frames_gapped == 4


def append_parts(tap: Tap, body: bytes, sizes: list[int], *, number: int = 0, withheld: bool = False, head: int = 0) -> None:
    for index, run in enumerate(pieces_of(body, sizes, head=head)):
        assert tap.point.append_part(run, number, 1000 + index, withheld, None, None)


def assert_counted(tap: Tap, frames: int) -> None:
    writer = tap.writer
    assert (writer.frames_matched_request, writer.thread.frames_flushed_request, writer.frames_dropped) == (frames, frames, 0)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rule=RULES,
    body=st.binary(min_size=8, max_size=60),
    sizes=st.lists(st.integers(12, 40), max_size=4),
    head=st.integers(0, 11),
    withheld=st.booleans(),
)
def test_a_frame_in_pieces_is_the_chunk_that_it_would_be_whole(
    tmp_path_factory: pytest.TempPathFactory, rule: TapRule, body: bytes, sizes: list[int], head: int, withheld: bool
) -> None:
    tap, other = (Tap(tmp_path_factory.mktemp("log"), rule) for _ in range(2))
    append_parts(tap, body, sizes, head=head, withheld=withheld)
    other.point.append(run_of([body]), 0, 1000 + len(pieces_of(body, sizes)) - 1, ints([0] if withheld else []))
    (block,), (expected,) = tap.read(), other.read()
    (row,), (wanted,) = block.rows, expected.rows
    assert bytes(block.chunk_data(row)) == bytes(expected.chunk_data(wanted)) == framed([body])[:4] + kept_of(rule, body, withheld)
    assert row._replace(sizes_index=-1, flags=row.flags & ~1, lost_from_ns=0) == wanted._replace(sizes_index=-1, flags=wanted.flags & ~1)
    assert list(block.sizes(row) or []) == [len(body)]
    assert [frame.transfer_us for frame in frames_in(block)] == [(len(pieces_of(body, sizes)) - 1) // 1000]
    assert_counted(tap, 1)
    assert tap.writer.bytes_matched == other.writer.bytes_matched


@each_of("capture", ["lengths", "hash"], fresh={"folder": tempfile.TemporaryDirectory})
def test_no_piece_is_stored_of_what_is_not_kept(folder: str, capture: str) -> None:
    tap = Tap(Path(folder), TapRule(name="r", capture=capture))  # type: ignore[arg-type]
    *first, last = pieces_of(bytes(100_000), [50_000, 10])
    for run in first:
        assert tap.point.append_part(run, 0, 1, False, None, None)
    assert (tap.writer.builder.chunk_count, tap.writer.queued_bytes) == (0, 0)
    tap.point.append_part(last, 0, 1, False, None, None)
    assert tap.writer.builder.chunk_count == 1


def test_copying_stops_at_what_the_rule_keeps_and_with_credentials_before_it_begins(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="r", max_frame_bytes=1000))
    append_parts(tap, bytes(100_000), [600, 50_000])
    canary = b"correct horse battery staple" * 40
    append_parts(tap, canary, [100, 500], number=1, withheld=True)
    assert tap.writer.thread.bytes_flushed == 0
    blocks = tap.read()
    assert sum(block.header.block_len for block in blocks) < 3000
    assert [(frame.size, len(frame.body)) for block in blocks for frame in frames_in(block)] == [(100_000, 1000), (len(canary), 0)]
    assert [path for path in tmp_path.rglob("*") if path.is_file() and b"correct horse" in path.read_bytes()] == []


def test_of_a_frame_above_a_chunks_bound_only_the_length_is_kept(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"))
    size = record.MAX_CHUNK_BYTES + 1
    header = (size - 4).to_bytes(4, "big")
    tap.point.append_part(piece_of(header + bytes(100), PART_FIRST), 0, 1, False, None, None)
    assert tap.writer.queued_bytes == 0
    tap.point.append_part(piece_of(bytes(100), PART_LAST), 0, 1, False, None, None)
    (block,) = tap.read()
    (row,) = block.rows
    assert (row.original_bytes, row.lost_bytes, row.reason, bytes(block.chunk_data(row))) == (size, size - 4, record.REASON_OVERSIZE, header)


def test_a_piece_is_kept_by_reference_until_it_is_on_disk(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"))
    body = bytes(range(256)) * 1200
    runs = pieces_of(body, [100_000, 100_000])
    for run in runs[:2]:
        tap.point.append_part(run, 0, 1, False, None, None)
    pieces = tap.writer.builder.finish().pieces
    assert all(piece is run.data for piece, run in zip(pieces, runs, strict=False))


def test_the_chunk_of_an_answer_in_pieces_has_its_key_and_latency(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"), protocol="kafka", direction=record.DIRECTION_RESPONSE)
    body = bytes(200)
    for number, (key, latency) in enumerate([(1 << 16 | 13, 250), (-1, 1 << 40), (None, None)]):
        for index, run in enumerate(pieces_of(body, [50, 50])):
            tap.point.append_part(run, number, 1 + 10_000 * index, False, key, latency)
    found = tap.frames()
    assert [(frame.request_key, frame.latency_us) for frame in found] == [(1 << 16 | 13, 250), (-1, (1 << 31) - 1), (None, None)]
    assert [frame.transfer_us for frame in found] == [20, 0, 0]
    assert [(frame.number, frame.body) for frame in found] == [(0, body), (1, body), (2, body)]


def test_a_frame_that_is_cut_short_is_a_gap_without_frames_and_its_pieces_are_nobodys(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"))
    for run in pieces_of(bytes(500), [100, 100])[:2]:
        tap.point.append_part(run, 7, 30, False, None, None)
    tap.point.cut_short(50)
    tap.point.cut_short(60)
    (block,) = tap.read()
    (gap,) = block.gaps()
    assert (gap.reason, gap.frames, gap.bytes, gap.first_frame, gap.from_ns) == ("partial_frame", 0, 200, 7, 50)
    assert list(frames_in(block)) == []
    assert len(block.rows) == 1
    assert_counted(tap, 0)
