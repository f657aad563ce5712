import dataclasses
import fnmatch
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framegate.proxy.config.model import TapConfig, TapRule
from framegate.proxy.config.selection import api_key, byte_range
from framegate.proxy.network.run import Run
from framegate.proxy.relay.pairing import Pairing, PairingStats
from framegate.proxy.tap import record
from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.frame_tap import FrameTap, RequestFacts
from framegate.proxy.tap.log_block import GapRecord
from framegate.proxy.tap.point import TapPoint
from framegate.proxy.tap.rule_use import WINDOW_NS
from framegate.proxy.tap.rules import TapRules, TurnedOff
from framegate.proxy.tap.selection import SAMPLE_SCALE, SelectingTap, frame_hash
from framegate.proxy.tap.writer import TapWriter
from tests.fakes.runs import pieces_of, run_of
from tests.fakes.tap_read import Frame, read_blocks, read_frames, read_gaps
from tests.proxy.tap.test_redaction import digest, redacted

START_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000
CONNECTION = 7 << 40 | 5
REQUEST, RESPONSE = record.DIRECTION_REQUEST, record.DIRECTION_RESPONSE
APIS = (0, 1, 3, 18, 36)  # 36: its body is withheld


@dataclasses.dataclass(frozen=True)
class Sent:
    """One frame as it passes, and what is known of it."""

    direction: int
    number: int
    at_ns: int
    body: bytes
    api: int | None
    name: str | None
    withheld: bool


class Connection:
    """One Kafka connection, tapped in both directions by the real rules, with the pairing as the relay drives it."""

    def __init__(self, folder: Path, rules: tuple[TapRule, ...], queue_size: int = 64 * 1024) -> None:
        self.folder = str(folder)
        self.writer = TapWriter(TapConfig(directory=self.folder, queue_size=queue_size, flush_size=4096), "edge", "0", "b0")
        self.rules = TapRules(rules, self.writer)
        self.rules.begin(START_NS)
        self.pairing = Pairing(PairingStats())
        self.taps: list[FrameTap | None] = []
        for direction in (REQUEST, RESPONSE):
            self.taps.append(self.rules.match("main", "kafka", direction, "CN=a", "10.0.0.1:5", CONNECTION))
        if any(tap is not None and tap.asks for tap in self.taps):
            self.pairing.facts = RequestFacts()
        for tap in self.taps:
            if tap is not None:
                tap.facts = self.pairing.facts
        self.sent: list[Sent] = []
        self.counts = [0, 0]
        self.open: list[tuple[int, bool, int]] = []  # correlation id, key, size of requests without an answer
        self.asked = 0
        self.name: str | None = None
        self.now_ns = START_NS

    def requests(self, wanted: list[tuple[int, bytes | None, int]], head: list[int], pieces: list[int]) -> None:
        """API, client's name and bytes behind the header, for each; in one run, or, with ``pieces``, the last of them cut through."""
        bodies = []
        for api, name, rest in wanted:
            self.asked += 1
            header = struct.pack(">hhih", api, 9, self.asked, -1 if name is None else len(name)) + (name or b"")
            if api == 0:  # a Produce with acks=1: version 9 has tags and a compact transactional id before them
                header += b"\0\0" + struct.pack(">h", 1)
            bodies.append(header + bytes((self.asked + index) % 251 for index in range(rest)))
            self.name = None if name is None else name.decode()
            self.open.append((self.asked, api, len(bodies[-1])))
            self._note(REQUEST, bodies[-1], api, api == 36)
        self._pass(REQUEST, bodies, head, pieces)

    def answers(self, sizes: list[int], head: list[int], pieces: list[int]) -> None:
        bodies = []
        for size in sizes[: len(self.open)]:
            correlation, api, _ = self.open.pop(0)
            bodies.append(struct.pack(">i", correlation) + bytes((correlation * 3 + index) % 249 for index in range(size)))
            self._note(RESPONSE, bodies[-1], api, api == 36)
        if bodies:
            self._pass(RESPONSE, bodies, head, pieces)

    def _note(self, direction: int, body: bytes, api: int, withheld: bool) -> None:
        number = sum(item.direction == direction for item in self.sent)
        self.sent.append(Sent(direction, number, self.now_ns, body, api, self.name, withheld))

    def _pass(self, direction: int, bodies: list[bytes], head: list[int], pieces: list[int]) -> None:
        whole, cut = (bodies[:-1], bodies[-1]) if pieces else (bodies, None)
        if whole:
            fitting, left = [], len(whole[0]) + 3
            for size in head:
                if size <= left:
                    fitting.append(size)
                    left -= size
            self._append(direction, run_of(whole, head=fitting, behind=b"\0\0"))
        if cut is not None:
            runs = pieces_of(cut, [max(40, size) for size in pieces])
            for run in runs:
                self._append_part(direction, run, first=run is runs[0])
            self.counts[direction] += 1
        self.now_ns += STEP_NS

    def _append(self, direction: int, run: Run) -> None:
        pairing, tap, first = self.pairing, self.taps[direction], self.counts[direction]
        self.counts[direction] += int(run.frames)
        if direction == REQUEST:
            pairing.requests(run, self.now_ns)
            if tap is not None:
                tap.append(run, first, self.now_ns, pairing.sensitive)
        else:
            pairing.answers(run, self.now_ns, True)
            if tap is not None:
                tap.append(
                    run, first, self.now_ns, pairing.sensitive, pairing.keys, pairing.latencies, pairing.request_sizes, pairing.correlation_ids
                )

    def _append_part(self, direction: int, run: Run, *, first: bool) -> None:
        pairing, tap = self.pairing, self.taps[direction]
        if first and direction == REQUEST:
            pairing.request_part(run, self.now_ns)
        elif first:
            pairing.answer_part(run, self.now_ns)
        if tap is None:
            return
        withheld = first and len(pairing.sensitive) != 0
        number = self.counts[direction]
        if direction == REQUEST:
            tap.append_part(run, number, self.now_ns, withheld, None, None)
        else:
            facts = (pairing.keys[0], pairing.latencies[0], pairing.request_sizes[0], pairing.correlation_ids[0])
            tap.append_part(run, number, self.now_ns, withheld, *(int(fact) for fact in facts))

    def read(self) -> tuple[list[Frame], list[GapRecord]]:
        assert self.writer.flush_and_close(1000), self.writer.error
        return list(read_frames(self.folder)), list(read_gaps(self.folder))

    def chunks(self) -> list[record.ChunkRow]:
        return [row for block in read_blocks(self.folder, "edge.0.b0") for row in block.rows if row.kind == record.KIND_FRAMES]

    def tap(self) -> FrameTap:
        """The tap of requests."""
        tap = self.taps[REQUEST]
        assert tap is not None
        return tap


def rule_of(rules: tuple[TapRule, ...], sent: Sent) -> TapRule | None:
    """The model: the first rule that takes a frame."""
    for rule in rules:
        size = len(sent.body)
        if (
            record.DIRECTIONS[sent.direction] in rule.directions
            and rule.min_size <= size <= (rule.max_size or 2**31)
            and (not rule.apis or sent.api in {api_key(api) for api in rule.apis})
            and (not rule.clients or (sent.name is not None and any(fnmatch.fnmatchcase(sent.name, pattern) for pattern in rule.clients)))
            and (rule.expires_ns == 0 or sent.at_ns < rule.expires_ns)
        ):
            return rule
    return None


def stored_of(rule: TapRule, sent: Sent) -> bytes:
    """The model: what is stored of a frame's body."""
    if sent.withheld or rule.capture == "lengths":
        return b""
    if rule.capture == "hash":
        return digest(sent.body)
    kept = sent.body[: rule.max_frame_bytes] if rule.max_frame_bytes else sent.body
    return redacted(kept, [byte_range(text) for text in rule.blank], [byte_range(text) for text in rule.hash])


NAMES = (b"app-1", b"app-2", b"batch", b"", None)
RULES = st.builds(
    TapRule,
    name=st.just("r"),
    directions=st.sampled_from([("request",), ("response",), ("request", "response")]),
    min_size=st.sampled_from([0, 0, 20, 60]),
    max_size=st.sampled_from([0, 0, 40, 5000]),
    apis=st.sampled_from([(), (), ("Fetch",), ("produce", "36"), ("9999",)]),
    clients=st.sampled_from([(), (), ("app-*",), ("b?tch", ""), ("*",)]),
    capture=st.sampled_from(["full", "full", "full", "lengths", "hash"]),
    max_frame_bytes=st.sampled_from([0, 0, 30]),
    blank=st.sampled_from([(), (), ("0-15",), ("20-40", "8-9")]),
    hash=st.sampled_from([(), (), ("16-19",), ("41-",)]),
    sample_frames=st.sampled_from([1.0, 1.0, 0.5, 0.0]),
    expires_ns=st.sampled_from([0, 0, START_NS, START_NS + 4 * STEP_NS]),
).filter(lambda rule: rule.max_size == 0 or rule.min_size <= rule.max_size)
CUTS = st.lists(st.integers(1, 60), max_size=3)
TURNS = st.one_of(
    st.tuples(
        st.just("ask"),
        st.lists(st.tuples(st.sampled_from(APIS), st.sampled_from(NAMES), st.integers(0, 90)), min_size=1, max_size=8),
        CUTS,
        st.one_of(st.just([]), CUTS),
    ),
    st.tuples(st.just("answer"), st.lists(st.integers(0, 90), min_size=1, max_size=8), CUTS, st.one_of(st.just([]), CUTS)),
    st.tuples(st.just("large"), st.integers(10_000, 40_000)),
    st.tuples(st.just("write")),
)


def play(connection: Connection, turns: list[tuple[object, ...]]) -> None:
    for turn in turns:
        if turn[0] == "ask":
            connection.requests(*turn[1:])  # type: ignore[arg-type]
        elif turn[0] == "answer":
            connection.answers(*turn[1:])  # type: ignore[arg-type]
        elif turn[0] == "large":
            connection.requests([(1, b"app-1", turn[1])], [], [turn[1] // 3, turn[1] // 3])  # type: ignore[list-item, operator]
        else:
            connection.writer.write_queued()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(rules=st.lists(RULES, min_size=1, max_size=4), turns=st.lists(TURNS, min_size=1, max_size=14))
def test_every_frame_is_stored_or_counted_under_the_first_rule_that_takes_it(
    tmp_path_factory: pytest.TempPathFactory, rules: list[TapRule], turns: list[tuple[object, ...]]
) -> None:
    named = tuple(dataclasses.replace(rule, name=f"r{index}") for index, rule in enumerate(rules))
    connection = Connection(tmp_path_factory.mktemp("log"), named)
    play(connection, turns)
    frames, gaps = connection.read()
    stored = {(record.DIRECTIONS.index(frame.direction), frame.number): frame for frame in frames}
    assert len(stored) == len(frames)
    for rule in named:
        for direction, word in enumerate(record.DIRECTIONS):
            matched = [sent for sent in connection.sent if sent.direction == direction and rule_of(named, sent) is rule]
            mine = {key: frame for key, frame in stored.items() if key[0] == direction and frame.rule == rule.name}
            for sent in matched:
                frame = mine.pop((direction, sent.number), None)
                if frame is not None:
                    assert (frame.body, frame.size) == (stored_of(rule, sent), len(sent.body))
                    if direction == RESPONSE:
                        said = (frame.correlation_id, (frame.request_key or 0) >> 16)
                        assert said == (int.from_bytes(sent.body[:4], "big"), sent.api)
            assert not mine
            missing = [gap for gap in gaps if (gap.rule, gap.direction) == (rule.name, word)]
            kept = sum(key[0] == direction and frame.rule == rule.name for key, frame in stored.items())
            sampled = sum(gap.frames for gap in missing if gap.reason == "sampled")
            lost = sum(gap.frames for gap in missing if gap.reason == "queue_full")
            assert kept + sampled + lost == len(matched), (rule, word, missing)
            assert sum(gap.frames for gap in missing) == sampled + lost
            assert sampled == 0 or rule.sample_frames < 1
            if missing:
                left = {sent.number for sent in matched} - {number for way, number in stored if way == direction}
                assert min(gap.first_frame for gap in missing) == min(left)
            assert rule.sample_frames > 0 or kept == 0
    seen = [sum(rule_of(named, sent) is not None for sent in connection.sent if sent.direction == direction) for direction in (0, 1)]
    assert [connection.writer.frames_matched_request, connection.writer.frames_matched_response] == seen
    windows = verify(connection.folder).rows
    assert [(window.direction, window.missing) for window in windows if window.missing] == []
    assert sum(window.seen for window in windows) == sum(seen)
    lengths = {rule.name for rule in named if rule.capture == "lengths"}
    marked = {(sent.direction, sent.number) for sent in connection.sent if sent.withheld}
    withheld = sum(key in marked and frame.rule not in lengths for key, frame in stored.items())
    assert sum(window.withheld for window in windows) == withheld


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    asked=st.lists(st.tuples(st.sampled_from(APIS), st.sampled_from(NAMES), st.integers(0, 40)), min_size=2, max_size=30),
    cuts=st.lists(st.integers(1, 29), max_size=6),
    rules=st.lists(RULES, min_size=1, max_size=3),
)
def test_how_reads_fall_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[int, bytes | None, int]], cuts: list[int], rules: list[TapRule]
) -> None:
    named = tuple(dataclasses.replace(rule, name=f"r{index}", expires_ns=0) for index, rule in enumerate(rules))
    found = []
    for borders in ([], sorted({cut for cut in cuts if cut < len(asked)})):
        connection = Connection(tmp_path_factory.mktemp("log"), named, queue_size=8 << 20)
        for start, end in zip([0, *borders], [*borders, len(asked)], strict=True):
            connection.requests(asked[start:end], [3, 9], [])
        frames, gaps = connection.read()
        counted = sorted((gap.rule, gap.reason, gap.frames) for gap in gaps)
        found.append(([(frame.number, frame.rule, frame.body) for frame in frames], counted))
    assert found[0] == found[1]


def test_an_answer_in_the_log_says_what_it_answers(tmp_path: Path) -> None:
    connection = Connection(tmp_path, (TapRule(name="r", apis=("Fetch", "Metadata")),))
    connection.requests([(1, b"a", 5), (3, b"a", 100), (18, b"a", 5)], [], [])
    connection.requests([(1, b"a", 50)], [], [])
    connection.answers([1, 2, 3], [], [])
    connection.answers([500], [], [40])
    frames, _ = connection.read()
    answers = [frame for frame in frames if frame.direction == "response"]
    assert [(frame.number, (frame.request_key or 0) >> 16, frame.correlation_id, frame.request_size) for frame in answers] == [
        (0, 1, 1, 16),
        (1, 3, 2, 111),
        (3, 1, 4, 61),
    ]


def test_consecutive_frames_under_one_rule_are_one_chunk(tmp_path: Path) -> None:
    connection = Connection(tmp_path, (TapRule(name="small", max_size=30), TapRule(name="large", min_size=50)))
    connection.requests([(1, b"a", size) for size in (5, 6, 60, 61, 30, 7, 8)], [], [])
    frames, gaps = connection.read()
    assert [(frame.number, frame.rule) for frame in frames] == [(0, "small"), (1, "small"), (2, "large"), (3, "large"), (5, "small"), (6, "small")]
    assert gaps == []
    assert len(connection.chunks()) == 3


def test_a_chunk_with_replaced_bytes_says_so(tmp_path: Path) -> None:
    connection = Connection(tmp_path, (TapRule(name="r", blank=("14-17",), hash=("20-",)),))
    connection.requests([(1, b"abc", 40)], [], [])
    (frame,), _ = connection.read()
    (row,) = connection.chunks()
    assert (row.lost_bytes, record.REASONS[row.reason]) == (4 + 33, "capture")
    assert row.flags & record.FLAG_REPLACED
    assert len(frame.body) == 53
    cut = Connection(tmp_path / "cut", (TapRule(name="r", blank=("14-17",), max_frame_bytes=30),))
    cut.requests([(1, b"abc", 40), (36, b"abc", 5), (1, b"abc", 40)], [], [45])
    cut.requests([(1, b"abc", 40)], [], [500])
    frames, _ = cut.read()
    assert [(len(frame.body), frame.body[14:18]) for frame in frames] == [(30, bytes(4)), (0, b""), (30, bytes(4)), (30, bytes(4))]
    assert all(row.flags & record.FLAG_REPLACED for row in cut.chunks())


def test_shares_of_frames_are_even_and_differ_by_connection_and_direction() -> None:
    for seed in (0, 1, 0xFFFFFFFF):
        taken = [frame_hash(seed, number) < SAMPLE_SCALE // 4 for number in range(20_000)]
        assert 4700 < sum(taken) < 5300
        assert 4700 < sum(frame_hash(seed, number + (5 << 32)) < SAMPLE_SCALE // 4 for number in range(20_000)) < 5300
    assert [frame_hash(1, number) for number in range(8)] != [frame_hash(2, number) for number in range(8)]
    assert all(0 <= frame_hash(seed, number) < SAMPLE_SCALE for seed in (0, 0xFFFFFFFF) for number in (0, 1, 2**31, 2**62))


def test_a_rule_that_looks_at_nothing_of_a_frame_keeps_the_short_way(tmp_path: Path) -> None:
    def tap(*rules: TapRule, protocol: str = "framed") -> FrameTap | None:
        return TapRules(rules, writer).match("main", protocol, REQUEST, None, None, 1)

    writer = TapWriter(TapConfig(directory=str(tmp_path)), "edge", "0", "b0")
    plain = TapRule(name="all", blank=("0-3",), max_frame_bytes=9, sample_connections=0.5)
    assert isinstance(tap(plain, TapRule(name="later", min_size=5)), TapPoint)
    assert isinstance(tap(TapRule(name="kafka", apis=("Fetch",)), plain), TapPoint), "a connection without APIs"
    assert isinstance(tap(TapRule(name="kafka", apis=("Fetch",)), plain, protocol="kafka"), SelectingTap)
    conditions: tuple[dict[str, Any], ...] = (
        {"min_size": 1}, {"max_size": 1}, {"sample_frames": 0.5}, {"expires_ns": 1}, {"max_loss_percent": 1}, {"max_cpu_percent": 1},
    )  # fmt: skip
    for condition in conditions:
        assert isinstance(tap(TapRule(name="a", **condition)), SelectingTap)
    assert tap(TapRule(name="kafka", clients=("a",))) is None


def test_of_frames_that_are_not_passed_on_the_first_rule_that_may_take_them_has_lost_them(tmp_path: Path) -> None:
    rules = (TapRule(name="large", min_size=50), TapRule(name="fetch", apis=("Fetch",), max_size=40), TapRule(name="rest"))
    connection = Connection(tmp_path, rules)
    tap = connection.tap()
    tap.drop(3, 60 + 10 + 45 + 12, 0, START_NS, run_of([bytes(60), bytes(10), bytes(45)]))
    for run in pieces_of(bytes(700), [100, 100]):
        tap.drop(int(run.frames), int(run.size), 3, START_NS, run)
    tap.drop(2, 1000, 4, START_NS)
    tap.lose(record.REASON_PARTIAL_FRAME, 0, 5, 6, START_NS)
    _, gaps = connection.read()
    counted = sorted((gap.rule, gap.reason, gap.frames, gap.bytes) for gap in gaps)
    assert counted == [
        ("fetch", "undelivered", 1, 14),
        ("large", "partial_frame", 0, 5),
        ("large", "undelivered", 4, 64 + 704 + 1000),
        ("rest", "undelivered", 1, 49),
    ]


def test_a_frame_that_is_cut_short_is_a_gap_of_its_rule_and_the_next_is_whole(tmp_path: Path) -> None:
    connection = Connection(tmp_path, (TapRule(name="large", min_size=300), TapRule(name="rest", max_frame_bytes=1)))
    tap = connection.tap()
    first, second, _ = pieces_of(bytes(700), [100, 100])
    tap.append_part(first, 0, START_NS, False, None, None)
    tap.append_part(second, 0, START_NS, False, None, None)
    assert tap.is_within
    tap.cut_short(START_NS)
    assert not tap.is_within
    tap.cut_short(START_NS)
    for run in pieces_of(b"x" * 299, [100, 100]):
        tap.append_part(run, 1, START_NS, False, None, None)
    (frame,), (gap,) = connection.read()
    assert (gap.rule, gap.reason, gap.bytes) == ("large", "partial_frame", 200)
    assert (frame.rule, frame.number, frame.body) == ("rest", 1, b"x")


def test_of_a_frame_that_had_begun_before_nothing_is_taken(tmp_path: Path) -> None:
    connection = Connection(tmp_path, (TapRule(name="r", min_size=1),))
    for tap in (connection.tap(), TapRules((TapRule(name="s"),), connection.writer).match("main", "framed", REQUEST, None, None, 1)):
        assert tap is not None
        for run in pieces_of(bytes(700), [100, 100])[1:]:
            assert tap.append_part(run, 0, START_NS, False, None, None)
    assert connection.read() == ([], [])
    assert connection.writer.frames_matched == 0


def test_a_rule_that_loses_too_much_turns_itself_off_and_the_others_go_on(tmp_path: Path) -> None:
    rules = (TapRule(name="greedy", apis=("Fetch",), max_loss_percent=50.0), TapRule(name="rest"))
    connection = Connection(tmp_path, rules)
    for _ in range(20):
        connection.requests([(1, b"a", 20_000)], [], [])
    assert connection.rules.take_turned_off(connection.now_ns) == []
    connection.writer.write_queued()
    connection.now_ns += WINDOW_NS
    connection.requests([(1, b"a", 10), (3, b"a", 10)], [], [])
    (off,) = connection.rules.take_turned_off(connection.now_ns)
    assert off == TurnedOff("greedy", "loss", off.percent, 50.0)
    assert off.percent > 50
    connection.requests([(1, b"a", 10)], [], [])
    assert connection.rules.take_turned_off(connection.now_ns) == []
    assert connection.rules.match("main", "kafka", REQUEST, None, None, 9) is not None
    frames, _ = connection.read()
    assert [(frame.number, frame.rule) for frame in frames[-3:]] == [(20, "rest"), (21, "rest"), (22, "rest")]
    assert '"name":"greedy"' not in connection.rules.text
    assert '"name":"rest"' in connection.rules.text


def test_a_rule_that_costs_too_much_turns_itself_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter(range(0, 1 << 60, WINDOW_NS // 8))
    monkeypatch.setattr("time.thread_time_ns", lambda: next(spent))
    connection = Connection(tmp_path, (TapRule(name="dear", max_cpu_percent=30.0),))
    for _ in range(2):
        connection.requests([(1, b"a", 10)], [], [])
    connection.now_ns = START_NS + WINDOW_NS
    connection.requests([(1, b"a", 500)], [], [100])  # judged: two turns of an eighth are within the limit
    assert connection.rules.take_turned_off(connection.now_ns) == []
    connection.requests([(1, b"a", 10)], [], [])
    connection.now_ns = START_NS + 2 * WINDOW_NS
    connection.requests([(1, b"a", 10)], [], [])
    (off,) = connection.rules.take_turned_off(connection.now_ns)
    assert off == TurnedOff("dear", "cpu", 37.5, 30.0)  # two pieces and a run: three eighths
    frames, _ = connection.read()
    assert [frame.number for frame in frames] == [0, 1, 2, 3]


def test_a_source_is_muted_only_while_a_live_rule_mutes(tmp_path: Path) -> None:
    expires_ns = START_NS + 5 * STEP_NS
    rules = (TapRule(name="keep", on_full="mute", expires_ns=expires_ns), TapRule(name="drop", capture="lengths"))
    found = []
    for folder in ("quiet", "busy"):
        connection = Connection(tmp_path / folder, rules)
        tap = connection.tap()
        assert (tap.mutes, tap.may_read()) == (True, True)
        for _ in range(5):
            connection.requests([(1, b"a", 30_000)], [], [])
        assert not tap.may_read()
        if folder == "quiet":
            assert not connection.rules.expire(expires_ns - 1)
            assert not tap.may_read()
            assert connection.rules.expire(expires_ns), "the rule is over though no frame came"
        else:
            connection.requests([(1, b"a", 10)], [], [])  # expired: the second rule has it, and loses it
        assert tap.may_read()
        frames, gaps = connection.read()
        assert [(frame.number, frame.rule) for frame in frames] == [(number, "keep") for number in range(5)]
        found.append([(gap.rule, gap.reason, gap.frames) for gap in gaps])
    assert found == [[], [("drop", "queue_full", 1)]]
