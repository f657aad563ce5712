"""Deletes old segments by size and age. Run by the control process about once a second; no other process deletes.

Rules: only sealed segments go, in a stream the oldest first. A segment older than ``max_age_ms`` goes. While all streams together are
over the budget, segments go that every registered consumer has read, oldest first; when that is not enough, segments go that some
consumer still needs, and they are counted: a dead consumer must not fill the disk. A log within budget keeps what was read, so that a
second query, or a human, can still look back.

A consumer whose file cannot be read stands where it was last seen, and when it was never seen, at the beginning of everything.

Writers do not wait for a sweep, so each one leaves room for as much as the log grew since the last.

A sweep looks at what has changed: a stream whose folder has not changed is not listed again, of one that has only files that are not known to be
sealed are looked at. When nothing is due it costs a few system calls for each stream, however many segments there are.
"""

import dataclasses
import heapq
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Final

from framegate.proxy.tap.consumer import read_consumers
from framegate.proxy.tap.log_reader import START, Segment, segments, streams
from framegate.proxy.tap.log_segments import again

NS_PER_MS = 1_000_000
SETTLED_NS: Final = 2_000_000_000
"""A folder that was listed so long after it had changed has not changed since unless its time says so: file systems' clocks are coarse."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """What one sweep did.

    Attributes:
        usage: bytes of all segments now.
        deleted: segments deleted.
        deleted_bytes: their bytes.
        unread: of the deleted, those that a registered consumer had not read.
        over: bytes above the budget that could not be deleted, because they are in open segments.
        error: why something could not be done, in words; empty when all went well.
        unreadable: consumers whose files cannot be read, and why; what they may need counts as needed.
    """

    usage: int
    deleted: int
    deleted_bytes: int
    unread: int
    over: int
    error: str
    unreadable: dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Listed:
    """A stream as it was found.

    Attributes:
        segments: in order; the same list as before while nothing changed.
        size: bytes of all of them.
        changed_ns, listed_ns: when its folder had changed, and when it was listed, wall clock.
    """

    segments: list[Segment]
    size: int
    changed_ns: int
    listed_ns: int


class Retention:
    """Keeps one tap directory within budget and age. Not thread safe; blocks on the file system."""

    def __init__(
        self,
        directory: str,
        budget: int,
        max_age_ms: int,
        on_delete: Callable[[Sequence[Segment]], None] = lambda segments: None,
        on_listed: Callable[[Mapping[str, Sequence[Segment]]], None] = lambda listed: None,
    ) -> None:
        """Nothing is touched before ``sweep``.

        Args:
            directory: of the tap.
            budget: bytes of all segments together.
            max_age_ms: since a sealed segment was last written; 0 for no bound.
            on_delete: is told of the segments that a sweep is about to delete, in each stream in order.
            on_listed: is told of all segments that a sweep found, before it deletes any.
        """
        self._directory = directory
        self._budget = budget
        self._max_age_ns = max_age_ms * NS_PER_MS
        self._on_delete = on_delete
        self._on_listed = on_listed
        self._usage: int | None = None
        self._known: dict[str, dict[str, int]] = {}
        self._left: dict[str, list[Segment]] = {}
        self._listed: dict[str, _Listed] = {}

    @property
    def consumers(self) -> Mapping[str, Mapping[str, int]]:
        """Where each consumer stood at the last sweep."""
        return self._known

    @property
    def left(self) -> Mapping[str, Sequence[Segment]]:
        """The segments that the last sweep left, in order, by stream."""
        return self._left

    def sweep(self, now_ns: int, live: Set[str] = frozenset()) -> Sweep:
        """Delete what is due.

        Args:
            now_ns: wall clock.
            live: streams that are being written; their folders stay even when empty.
        """
        self._listed = {stream: self._look(stream) for stream in streams(self._directory)}
        listed = {stream: found.segments for stream, found in self._listed.items()}
        self._on_listed(listed)
        usage = sum(found.size for found in self._listed.values())
        growth = 0 if self._usage is None else max(0, usage - self._usage)
        target = self._budget - min(growth, self._budget // 4)
        consumers, unreadable = self._consumers()
        error = ""
        deleted: list[Segment] = []
        unread = 0
        due = self._due(listed, consumers, usage - target, now_ns)
        if due:
            self._on_delete(due)
        for segment in due:
            try:
                os.unlink(segment.path)
            except FileNotFoundError:
                continue
            except OSError as problem:
                error = str(problem)
                continue
            deleted.append(segment)
            unread += segment.limit > _read_to(segment.stream, consumers)
        gone = set(deleted)
        self._left = {stream: [segment for segment in found if segment not in gone] if gone else found for stream, found in listed.items()}
        for stream, left in self._left.items():
            if not left and stream not in live:
                error = self._remove_folder(stream) or error
        freed = sum(segment.size for segment in deleted)
        self._usage = usage - freed
        return Sweep(self._usage, len(deleted), freed, unread, max(0, self._usage - self._budget), error, unreadable)

    def _look(self, stream: str) -> _Listed:
        """A stream as it is now."""
        before = self._listed.get(stream)
        now_ns = time.time_ns()
        try:
            changed_ns = os.stat(os.path.join(self._directory, stream)).st_mtime_ns
        except FileNotFoundError:
            return _Listed([], 0, 0, 0)
        if before is None or changed_ns != before.changed_ns or before.listed_ns < changed_ns + SETTLED_NS:
            known = {} if before is None else {segment.base: segment for segment in before.segments if segment.sealed}
            found = segments(self._directory, stream, known)
        else:
            now_ns = before.listed_ns
            found = before.segments
            if found and not found[-1].sealed and (last := again(found[-1])) is not found[-1]:
                found = [*found[:-1], last]
        if before is not None and (found is before.segments or found == before.segments):  # the same list: who comes next sees that nothing changed
            return _Listed(before.segments, before.size, changed_ns, now_ns)
        return _Listed(found, sum(segment.size for segment in found), changed_ns, now_ns)

    def _due(self, listed: Mapping[str, list[Segment]], consumers: Mapping[str, Mapping[str, int]], excess: int, now_ns: int) -> list[Segment]:
        """The segments to delete, in order."""
        due: list[Segment] = []
        oldest_ns = now_ns - self._max_age_ns if self._max_age_ns else 0
        for stream, found in listed.items():
            due += (segment for _, _, _, segment in itertools.takewhile(lambda item: item[0] < oldest_ns, _aged(stream, found)))
        excess -= sum(segment.size for segment in due)
        for needed in (False, True) if excess > 0 else ():
            aged = [_of_need(_aged(stream, found), oldest_ns, _read_to(stream, consumers), needed) for stream, found in listed.items()]
            for _, _, _, segment in heapq.merge(*aged, key=lambda item: item[:3]):
                if excess <= 0:
                    break
                due.append(segment)
                excess -= segment.size
        return due

    def _consumers(self) -> tuple[Mapping[str, Mapping[str, int]], dict[str, str]]:
        """Where each consumer stands, as far as is known, and whose files cannot be read."""
        offsets, unreadable = read_consumers(self._directory)
        self._known = {**offsets, **{name: self._known.get(name, {}) for name in unreadable}}
        return self._known, unreadable

    def _remove_folder(self, stream: str) -> str:
        try:
            os.rmdir(os.path.join(self._directory, stream))
        except OSError as error:
            return str(error)
        return ""


_Aged = tuple[int, str, int, Segment]
"""The time from which a segment's age counts, its stream, its base, and it."""


def _read_to(stream: str, consumers: Mapping[str, Mapping[str, int]]) -> int:
    """Up to where every registered consumer has read a stream; one that does not know it has yet to read it."""
    return min((offsets.get(stream, START) for offsets in consumers.values()), default=1 << 62)


def _aged(stream: str, found: Sequence[Segment]) -> Iterator[_Aged]:
    """The sealed segments of a stream in order, up to the first open one. None is older than one before it, whatever their times say."""
    latest = 0
    for segment in itertools.takewhile(lambda segment: segment.sealed, found):
        latest = max(latest, segment.modified_ns)
        yield latest, stream, segment.base, segment


def _of_need(aged: Iterator[_Aged], oldest_ns: int, read_to: int, needed: bool) -> Iterator[_Aged]:
    """Those that are not too old, and that some consumer has yet to read, or that none has."""
    return (item for item in aged if item[0] >= oldest_ns and (item[3].limit > read_to) is needed)
