"""Rules that examine each frame: size, API, client name, a share of frames, an expiry time, limits of losses and cost.

Connections whose rule takes all frames, or that have no rule, do not come here. For others a run is split where the rule changes: each part goes to
the ``TapPoint`` of its rule, as a run of its own. Finding the rule of a frame makes no object and calls native code only; splitting copies.

A condition on something that is not known of a frame does not match. But for frames that were received and are not passed on, only size and number
are examined, and the first rule that may match counts the loss, so that no loss is missed.
"""

import time
from typing import TYPE_CHECKING, Final

from librt.vecs import append, vec
from mypy_extensions import i32, i64

from framegate.proxy.network.run import PART_FIRST, PART_LAST, Run
from framegate.proxy.tap.frame_tap import FrameTap
from framegate.proxy.tap.point import TapPoint
from framegate.proxy.tap.record import DIRECTION_REQUEST, REASON_SAMPLED, REASON_UNDELIVERED
from framegate.proxy.tap.rule_use import RuleUse
from framegate.proxy.tap.slicing import find_frames

if TYPE_CHECKING:
    import re

SAMPLE_SCALE: Final = 1 << 32
UNKNOWN: Final = -1
NO_RULE: Final = -1
_LOW: Final = 0xFFFFFFFF
_SPREAD: Final = 0x45D9F3B  # multiplied, below 2^60: the same in native integers and in Python's


def frame_hash(seed: i64, number: i64) -> i64:
    """The place of a frame in ``SAMPLE_SCALE``, evenly distributed over numbers; below 2^32, like ``seed``."""
    mixed = (number ^ (number >> 32) ^ seed) & _LOW
    mixed = (((mixed >> 16) ^ mixed) * _SPREAD) & _LOW
    mixed = (((mixed >> 16) ^ mixed) * _SPREAD) & _LOW
    return (mixed >> 16) ^ mixed


class Conditions:
    """The conditions of one rule on frames, compiled."""

    def __init__(
        self, min_size: i64, max_size: i64, apis: bytes | None, clients: "list[re.Pattern[str]] | None", sample_below: i64, expires_ns: i64
    ) -> None:
        # min_size, max_size: of the body
        self.min_size: i64 = min_size
        self.max_size: i64 = max_size
        self.apis = apis  # by key, 1 where the rule takes it; None: any API, known or not
        self.clients = clients  # patterns, one of which must match the client's name; None: any name, known or not
        self.sample_below: i64 = sample_below  # the share of frames that is recorded, of ``SAMPLE_SCALE``
        self.expires_ns: i64 = expires_ns  # from when on the rule matches nothing; 0 never
        self.expired = False  # that time was reached at the last check

    def takes_client(self, name: str | None) -> bool:
        """Whether frames of a client of that name match; None: not known."""
        if self.clients is None:
            return True
        return name is not None and any(pattern.fullmatch(name) is not None for pattern in self.clients)

    def takes(self, size: i64, api: i64) -> bool:
        """Whether a frame matches by its body's size and its API, ``UNKNOWN`` when that is not known."""
        if size < self.min_size or size > self.max_size:
            return False
        apis = self.apis
        return apis is None or (0 <= api < i64(len(apis)) and apis[api] != 0)


class Candidate:
    """A rule that one direction of a connection may match."""

    def __init__(self, point: TapPoint, conditions: Conditions, use: RuleUse | None) -> None:
        self.point = point  # gets its frames
        self.conditions = conditions  # on frames
        self.use = use  # counts for its limits; None: it has none
        self.live = True  # it has not expired and is not turned off, at the last run
        self.named = conditions.takes_client(None)  # it takes the present client name

    @property
    def is_over(self) -> bool:
        """Whether the rule takes no further frame, also when no frame came since."""
        use = self.use
        return not self.live or self.conditions.expired or (use is not None and use.off)


class SelectingTap(FrameTap):
    """Finds the rule of each frame."""

    def __init__(self, candidates: list[Candidate], connection: int, direction: i64, turned_off: list[RuleUse]) -> None:
        """Made by ``TapRules.match``."""
        asks = any(item.conditions.apis is not None or item.conditions.clients is not None for item in candidates)
        super().__init__(any(item.point.mutes for item in candidates), asks)
        self._candidates = candidates
        self._answers: bool = direction != DIRECTION_REQUEST
        self._seed: i64 = (connection ^ (connection >> 32) ^ (direction << 31)) * 2654435761 & _LOW
        self._turned_off = turned_off
        self._name: str | None = None
        self._begun: Candidate | None = None
        self._dropped_pick: i64 = NO_RULE
        self._dropped_size: i64 = 0

    # Finding the rule

    def _refresh(self, capture_ns: i64) -> None:
        """Update which rules are live; judge those with limits."""
        for candidate in self._candidates:
            expires_ns = candidate.conditions.expires_ns
            candidate.live = expires_ns == 0 or capture_ns < expires_ns
            use = candidate.use
            if use is not None:
                if use.evaluate(capture_ns):
                    self._turned_off.append(use)
                if use.off:
                    candidate.live = False

    def _rename(self, name: str | None) -> None:
        """Set the client name for the following frames."""
        if name != self._name:
            self._name = name
            for candidate in self._candidates:
                candidate.named = candidate.conditions.takes_client(name)

    def _pick(self, size: i64, api: i64, number: i64) -> i64:
        """Twice the index of the first rule that takes a frame, plus one when its share excludes the frame; or ``NO_RULE``."""
        candidates = self._candidates
        count: i64 = len(candidates)
        index: i64 = 0
        while index < count:
            candidate = candidates[index]
            if candidate.live and candidate.named and candidate.conditions.takes(size, api):
                return self._sampled(index, number)
            index += 1
        return NO_RULE

    def _pick_unseen(self, size: i64, number: i64) -> i64:
        """Like ``_pick`` for a frame of which only the number, and the size unless it is ``UNKNOWN``, are examined: the first possible rule."""
        candidates = self._candidates
        count: i64 = len(candidates)
        index: i64 = 0
        while index < count:
            candidate = candidates[index]
            conditions = candidate.conditions
            if candidate.live and (size < 0 or conditions.min_size <= size <= conditions.max_size):
                return self._sampled(index, number)
            index += 1
        return NO_RULE

    def _sampled(self, index: i64, number: i64) -> i64:
        below = self._candidates[index].conditions.sample_below
        return 2 * index + (1 if below < SAMPLE_SCALE and frame_hash(self._seed, number) >= below else 0)

    def _picks(self, run: Run, sizes: "vec[i64]", first_frame: i64, keys: vec[i32] | None) -> "vec[i64]":
        facts = self.facts
        names: i64 = -1
        if facts is not None and self._answers:
            self._rename(facts.name)
        picks = vec[i64](capacity=run.frames)
        index: i64 = 0
        while index < run.frames:
            key: i64 = UNKNOWN
            if self._answers:
                if keys is not None:
                    key = i64(keys[index])
            elif facts is not None:
                key = i64(facts.keys[index])
                if i64(facts.clients[index]) != names:
                    names = i64(facts.clients[index])
                    self._rename(facts.names[names])
            picks = append(picks, self._pick(sizes[index], key >> 16 if key >= 0 else i64(UNKNOWN), first_frame + index))
            index += 1
        return picks

    # The interface for the relay

    @property
    def is_within(self) -> bool:
        return self._begun is not None

    def append(
        self,
        run: Run,
        first_frame: i64,
        capture_ns: i64,
        sensitive: vec[i32] | None = None,
        keys: vec[i32] | None = None,
        latencies: vec[i32] | None = None,
        request_sizes: vec[i32] | None = None,
        correlation_ids: vec[i32] | None = None,
    ) -> bool:
        self._refresh(capture_ns)
        positions, sizes = find_frames(run)
        picks = self._picks(run, sizes, first_frame, keys)
        goes_on = True
        start: i64 = 0
        while start < run.frames:
            pick = picks[start]
            end = start + 1
            while end < run.frames and picks[end] == pick:
                end += 1
            if pick & 1 and pick != NO_RULE:
                size = positions[end] - positions[start]
                self._candidates[pick >> 1].point.miss(REASON_SAMPLED, end - start, size, first_frame + start, capture_ns)
            elif pick != NO_RULE:
                goes_on &= self._append_some(
                    self._candidates[pick >> 1],
                    _part_of(run, positions, start, end),
                    first_frame + start,
                    capture_ns,
                    _indexes_of(sensitive, start, end),
                    _values_of(keys, start, end, run.frames),
                    _values_of(latencies, start, end, run.frames),
                    _values_of(request_sizes, start, end, run.frames),
                    _values_of(correlation_ids, start, end, run.frames),
                )
            start = end
        return goes_on

    def _append_some(
        self,
        candidate: Candidate,
        run: Run,
        first_frame: i64,
        capture_ns: i64,
        sensitive: vec[i32] | None,
        keys: vec[i32] | None,
        latencies: vec[i32] | None,
        request_sizes: vec[i32] | None,
        correlation_ids: vec[i32] | None,
    ) -> bool:
        use = candidate.use
        if use is None:
            return candidate.point.append(run, first_frame, capture_ns, sensitive, keys, latencies, request_sizes, correlation_ids)
        use.wanted += run.frames
        started: i64 = time.thread_time_ns() if use.timed else 0
        goes_on = candidate.point.append(run, first_frame, capture_ns, sensitive, keys, latencies, request_sizes, correlation_ids)
        if use.timed:
            use.spent_ns += i64(time.thread_time_ns()) - started
        return goes_on

    def append_part(
        self,
        run: Run,
        frame_number: i64,
        capture_ns: i64,
        withheld: bool,
        key: int | None,
        latency_us: int | None,
        request_size: int = -1,
        correlation_id: int = -1,
    ) -> bool:
        if run.part & PART_FIRST != 0:
            self._begin(run, frame_number, capture_ns, key)
        candidate = self._begun
        if candidate is None:
            return True
        use = candidate.use
        started: i64 = time.thread_time_ns() if use is not None and use.timed else 0
        goes_on = candidate.point.append_part(run, frame_number, capture_ns, withheld, key, latency_us, request_size, correlation_id)
        if use is not None and use.timed:
            use.spent_ns += i64(time.thread_time_ns()) - started
        if run.part & PART_LAST != 0:
            self._begun = None
        return goes_on

    def _begin(self, run: Run, number: i64, capture_ns: i64, key: int | None) -> None:
        """Find the rule of a frame at its first piece."""
        self._refresh(capture_ns)
        api: i64 = UNKNOWN
        facts = self.facts
        if facts is not None:
            self._rename(facts.name)
        if self._answers:
            api = i64(key) >> 16 if key is not None and key >= 0 else i64(UNKNOWN)
        elif facts is not None and facts.keys[0] >= 0:
            api = i64(facts.keys[0]) >> 16
        pick = self._pick(run.first_sizes()[1], api, number)
        if pick == NO_RULE:
            self._begun = None
            return
        candidate = self._begun = self._candidates[pick >> 1]
        if pick & 1:
            candidate.point.leave_out()
        elif candidate.use is not None:
            candidate.use.wanted += 1

    def cut_short(self, capture_ns: i64) -> None:
        candidate = self._begun
        if candidate is not None:
            self._begun = None
            candidate.point.cut_short(capture_ns)

    def may_read(self) -> bool:
        may = True
        for candidate in self._candidates:
            may &= candidate.is_over or candidate.point.may_read()
        return may

    def drop(self, frame_count: i64, byte_count: i64, first_frame: i64, capture_ns: i64, run: Run | None = None) -> None:
        self._refresh(capture_ns)
        if run is None:
            self._miss(self._pick_unseen(UNKNOWN, first_frame) & ~1, frame_count, byte_count, first_frame, capture_ns)
        elif run.part != 0:
            self._drop_part(run, first_frame, capture_ns)
        else:
            positions, sizes = find_frames(run)
            index: i64 = 0
            while index < frame_count:
                number = first_frame + index
                self._miss(self._pick_unseen(sizes[index], number), 1, positions[index + 1] - positions[index], number, capture_ns)
                index += 1

    def _drop_part(self, run: Run, number: i64, capture_ns: i64) -> None:
        """Count a frame that is not passed on with its last piece; its first one has the size."""
        if run.part & PART_FIRST != 0:
            self._dropped_pick = self._pick_unseen(run.first_sizes()[1], number)
            self._dropped_size = 0
        self._dropped_size += run.size
        if run.part & PART_LAST != 0:
            self._miss(self._dropped_pick, 1, self._dropped_size, number, capture_ns)

    def _miss(self, pick: i64, frame_count: i64, byte_count: i64, first_frame: i64, capture_ns: i64) -> None:
        if pick >= 0:
            reason = REASON_SAMPLED if pick & 1 else REASON_UNDELIVERED
            self._candidates[pick >> 1].point.miss(reason, frame_count, byte_count, first_frame, capture_ns)

    def lose(self, reason: int, frame_count: int, byte_count: int, first_frame: int, capture_ns: int) -> None:
        self._refresh(capture_ns)
        pick = self._pick_unseen(UNKNOWN, first_frame)
        if pick >= 0:
            self._candidates[pick >> 1].point.lose(reason, frame_count, byte_count, first_frame, capture_ns)


def _part_of(run: Run, positions: "vec[i64]", start: i64, end: i64) -> Run:
    """Frames ``start`` to ``end`` (exclusive) of a run, as a run."""
    if start == 0 and end == run.frames:
        return run
    if start == 0 and run.head is not None:
        return Run(run.head, run.head_size, run.data, run.first, positions[end] - run.head_size, end, 0, 0, run.framing)
    data = run.data[positions[start] - run.head_size : positions[end] - run.head_size]
    return Run(None, 0, data, 0, len(data), end - start, 0, 0, run.framing)


def _values_of(values: vec[i32] | None, start: i64, end: i64, count: i64) -> vec[i32] | None:
    """The values of some frames, out of those of all frames."""
    if values is None or (start == 0 and end == count):
        return values
    return values[start:end]


def _indexes_of(indexes: vec[i32] | None, start: i64, end: i64) -> vec[i32] | None:
    """Ascending indexes of frames: those from ``start`` to ``end`` (exclusive), counted from ``start``."""
    if indexes is None:
        return None
    found = vec[i32]()
    for index in indexes:
        if start <= i64(index) < end:
            found = append(found, i32(i64(index) - start))
    return found
