import hashlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from librt.vecs import append, vec
from mypy_extensions import i32

from proxy.config.model import TapConfig, TapRule
from proxy.network.run import Run
from proxy.tap import point as point_module
from proxy.tap import record
from proxy.tap.log_reader import Frame, LogBlock, read_blocks
from proxy.tap.rules import TapRules
from proxy.tap.writer import TapWriter
from tests.fakes.runs import framed, run_of

BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=12)


def ints(values: list[int]) -> "vec[i32]":
    numbers = vec[i32]()
    for value in values:
        numbers = append(numbers, i32(value))
    return numbers


class Tap:
    """One point of one writer, written in the caller's thread."""

    def __init__(self, folder: Path, rule: TapRule, protocol: str = "framed", direction: int = record.DIRECTION_REQUEST) -> None:
        self.writer = TapWriter(TapConfig(directory=str(folder)), "edge", "0", "b0")
        found = TapRules((rule,), self.writer).match("main", protocol, direction, "CN=a", "10.0.0.1:5", 77)
        assert found is not None
        self.point = found
        self.folder = folder

    def read(self) -> list[LogBlock]:
        assert self.writer.flush_and_close(1000)
        return list(read_blocks(str(self.folder), self.writer.stream))

    def frames(self) -> list[Frame]:
        return [frame for block in self.read() for frame in block.frames()]


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
    assert tap.writer.frames_matched_request == tap.writer.frames_flushed_request == len(expected)
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


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs(), cap=st.integers(1, 50))
def test_max_frame_bytes_keeps_the_first_bytes_and_the_size_of_each(tmp_path_factory: pytest.TempPathFactory, run: Run, cap: int) -> None:
    tap = Tap(tmp_path_factory.mktemp("log"), TapRule(name="cut", max_frame_bytes=cap))
    bodies = bodies_of(run)
    tap.point.append(run, 0, 1)
    (block,) = tap.read()
    (row,) = block.rows
    sizes = block.sizes(row)
    assert sizes is not None
    assert list(sizes) == [len(body) for body in bodies]
    assert [(frame.size, frame.body) for frame in block.frames()] == [(len(body), body[:cap]) for body in bodies]
    cut = sum(max(0, len(body) - cap) for body in bodies)
    assert (row.original_bytes, row.lost_bytes) == (run.size, cut)
    assert bool(row.flags & record.FLAG_TRUNCATED) is (cut > 0)
    assert row.reason == (record.REASON_CAPTURE if cut else record.REASON_NONE)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs())
def test_lengths_keep_headers_only(tmp_path_factory: pytest.TempPathFactory, run: Run) -> None:
    tap = Tap(tmp_path_factory.mktemp("log"), TapRule(name="cut", capture="lengths"))
    bodies = bodies_of(run)
    tap.point.append(run, 0, 1)
    (block,) = tap.read()
    (row,) = block.rows
    assert row.data_length == 4 * len(bodies)
    assert [(frame.size, frame.body) for frame in block.frames()] == [(len(body), b"") for body in bodies]
    assert row.lost_bytes == sum(len(body) for body in bodies)
    assert not row.flags & (record.FLAG_TRUNCATED | record.FLAG_WITHHELD)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs())
def test_hash_keeps_a_digest_of_each_body(tmp_path_factory: pytest.TempPathFactory, run: Run) -> None:
    tap = Tap(tmp_path_factory.mktemp("log"), TapRule(name="cut", capture="hash"))
    bodies = bodies_of(run)
    tap.point.append(run, 0, 1)
    (block,) = tap.read()
    (row,) = block.rows
    expected = [(len(body), hashlib.blake2b(body, digest_size=16).digest()) for body in bodies]
    assert [(frame.size, frame.body) for frame in block.frames()] == expected
    assert row.lost_bytes == sum(len(body) for body in bodies)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=runs(), data=st.data(), capture=st.sampled_from(["full", "lengths", "hash"]))
def test_withheld_bodies_are_nowhere_in_the_file(tmp_path_factory: pytest.TempPathFactory, run: Run, data: st.DataObject, capture: str) -> None:
    tap = Tap(tmp_path_factory.mktemp("log"), TapRule(name="r", capture=capture))  # type: ignore[arg-type]
    bodies = bodies_of(run)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(bodies) - 1), min_size=1)))
    tap.point.append(run, 0, 1, ints(chosen))
    (block,) = tap.read()
    (row,) = block.rows
    found = list(block.frames())
    assert [frame.size for frame in found] == [len(body) for body in bodies]
    for index, (frame, body) in enumerate(zip(found, bodies, strict=True)):
        if index in chosen:
            assert frame.body == b""
        elif capture == "full":
            assert frame.body == body
    assert row.flags & record.FLAG_WITHHELD
    assert row.reason == record.REASON_WITHHELD


def test_a_canary_in_a_sensitive_frame_never_reaches_the_disk(tmp_path: Path) -> None:
    canary = b"correct horse battery staple"
    tap = Tap(tmp_path, TapRule(name="all"), protocol="kafka")
    tap.point.append(run_of([b"before", canary, b"after"], head=[2]), 0, 1, ints([1]))
    tap.point.append(run_of([canary * 4000], head=[5, 1000, 70_000]), 3, 2, ints([0]))
    assert [frame.body for frame in tap.frames()] == [b"before", b"", b"after", b""]
    assert [path for path in tmp_path.rglob("*") if path.is_file() and canary in path.read_bytes()] == []


def test_no_sensitive_frames_is_a_plain_chunk(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"))
    tap.point.append(run_of([b"a"]), 0, 1, ints([]))
    (block,) = tap.read()
    assert block.rows[0].flags == 0


def test_answers_carry_request_keys_and_latencies(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"), protocol="kafka", direction=record.DIRECTION_RESPONSE)
    tap.point.append(run_of([b"a", b"b"]), 0, 1, None, ints([18 << 16 | 4, -1]), ints([250, -1]))
    tap.point.append(run_of([b"c"]), 2, 2)
    tap.point.append(run_of([b"d"]), 3, 3, ints([0]), ints([17 << 16]), ints([9]))
    found = tap.frames()
    assert [(frame.request_key, frame.latency_us) for frame in found] == [(18 << 16 | 4, 250), (-1, -1), (None, None), (17 << 16, 9)]
    assert [frame.body for frame in found] == [b"a", b"b", b"c", b""]
    assert tap.writer.frames_matched_response == 4


@pytest.mark.parametrize(("keys", "latencies"), [([1], [1, 2]), ([1, 2], [1]), ([1, 2], None)])
def test_keys_and_latencies_must_be_as_many_as_the_frames(tmp_path: Path, keys: list[int], latencies: list[int] | None) -> None:
    tap = Tap(tmp_path, TapRule(name="all"))
    with pytest.raises(ValueError, match="2 frames"):
        tap.point.append(run_of([b"a", b"b"]), 0, 1, None, ints(keys), None if latencies is None else ints(latencies))
    assert tap.writer.frames_matched_request == 0
    assert tap.frames() == []


def test_a_connection_outside_the_sample_is_counted_as_a_gap(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="half", sample_connections=0.0))
    for number in range(3):
        assert tap.point.append(run_of([b"abc"]), number, 100 + number)
    (block,) = tap.read()
    (gap,) = block.gaps()
    assert (gap.reason, gap.frames, gap.bytes, gap.first_frame, gap.from_ns, gap.connection) == ("sampled", 3, 21, 0, 100, 77)
    assert tap.writer.dropped_sampled == tap.writer.frames_matched_request == tap.writer.frames_gapped == 3


def test_a_frame_that_never_became_whole_is_a_gap_without_frames(tmp_path: Path) -> None:
    tap = Tap(tmp_path, TapRule(name="all"))
    tap.point.append(run_of([b"whole"]), 0, 1)
    tap.point.lose(record.REASON_PARTIAL_FRAME, 0, 512, 1, 50)
    (block,) = tap.read()
    (gap,) = block.gaps()
    assert (gap.reason, gap.frames, gap.bytes, gap.first_frame, gap.from_ns) == ("partial_frame", 0, 512, 1, 50)
    assert tap.writer.frames_dropped == 0


def test_the_cursor_reads_ranges_across_pieces() -> None:
    cursor = point_module.PieceCursor([b"abc", memoryview(b"de"), b"", b"fgh"])
    assert b"".join(cursor.parts(1, 1)) == b""
    assert b"".join(cursor.parts(1, 6)) == b"bcdef"
    assert b"".join(cursor.parts(6, 8)) == b"gh"
