"""Deletes old segments by size and age. The control process runs it about once a second; no other process deletes.

Rules: only sealed segments are deleted, the oldest of a stream first. A segment older than ``max_age_ms`` is deleted. While all streams together are
over the budget, segments that every registered consumer has read are deleted, oldest first; if that is not enough, also segments that some consumer
needs, and these are counted: a consumer that has stopped must not fill the disk. Within the budget, read segments stay for other readers. Segments
that the consumer ``keep_for`` has not read are never deleted.

A consumer whose file cannot be read counts with its last known offsets, or as having read nothing. Each sweep leaves room for as much as the log grew
since the last one, because writers do not wait for a sweep.

A sweep lists a stream only when its folder has changed, and then examines only files that are not known to be sealed. So it costs a few system calls
for each stream, however many segments there are.
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
"""A folder listed this long after its last change is listed again only when its time changes; clocks of file systems are coarse."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """The result of one sweep."""

    usage: int  # bytes of all segments now
    deleted: int  # number of segments deleted
    deleted_bytes: int  # their bytes
    unread: int  # deleted segments that a registered consumer had not read
    over: int  # bytes above the budget that cannot be deleted, because they are in open segments
    error: str  # why something failed, in words; empty when nothing did
    unreadable: dict[str, str]  # consumers whose files cannot be read, and why


@dataclasses.dataclass(frozen=True, slots=True)
class _Listed:
    """A stream as last listed."""

    segments: list[Segment]  # in order; the same list object while nothing changes
    size: int  # bytes of all of them
    # changed_ns, listed_ns: when the folder had changed, and when it was listed, wall clock
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
        keep_for: str = "",
    ) -> None:
        """Nothing is touched before ``sweep``.

        Args:
            budget: bytes of all segments together.
            max_age_ms: since a sealed segment was last written; 0 for no bound.
            on_delete: gets the segments that a sweep will delete, in order within each stream.
            on_listed: gets all segments that a sweep found, before it deletes any.
            keep_for: a consumer without whose reading nothing is deleted, registered or not; empty: there is none.
        """
        self._directory = directory
        self._budget = budget
        self._max_age_ns = max_age_ms * NS_PER_MS
        self._on_delete = on_delete
        self._on_listed = on_listed
        self._keep_for = keep_for
        self._usage: int | None = None
        self.consumers: dict[str, dict[str, int]] = {}  # the offsets of each at the last sweep
        self.left: dict[str, list[Segment]] = {}  # the segments that the last sweep left, in order, by stream
        self._listed: dict[str, _Listed] = {}

    def sweep(self, now_ns: int, live: Set[str] = frozenset()) -> Sweep:
        """Delete what is due. ``now_ns``: wall clock. ``live``: streams that are being written; their folders stay even when empty."""
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
        self.left = {stream: [segment for segment in found if segment not in gone] if gone else found for stream, found in listed.items()}
        for stream, left in self.left.items():
            if not left and stream not in live:
                try:
                    os.rmdir(os.path.join(self._directory, stream))
                except OSError as problem:
                    error = str(problem)
        freed = sum(segment.size for segment in deleted)
        self._usage = usage - freed
        return Sweep(self._usage, len(deleted), freed, unread, max(0, self._usage - self._budget), error, unreadable)

    def _look(self, stream: str) -> _Listed:
        """List a stream as far as it has changed."""
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
        if before is not None and (found is before.segments or found == before.segments):  # the same list object shows that nothing changed
            return _Listed(before.segments, before.size, changed_ns, now_ns)
        return _Listed(found, sum(segment.size for segment in found), changed_ns, now_ns)

    def _due(self, listed: Mapping[str, list[Segment]], consumers: Mapping[str, Mapping[str, int]], excess: int, now_ns: int) -> list[Segment]:
        """The segments to delete, in order."""
        if self._keep_for:
            kept = consumers.get(self._keep_for, {})
            listed = {stream: [segment for segment in found if segment.limit <= kept.get(stream, START)] for stream, found in listed.items()}
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
        """The offsets of each consumer as far as known, and whose files cannot be read."""
        offsets, unreadable = read_consumers(self._directory)
        self.consumers = {**offsets, **{name: self.consumers.get(name, {}) for name in unreadable}}
        return self.consumers, unreadable


_Aged = tuple[int, str, int, Segment]  # the time from which a segment's age counts, its stream, its base, and the segment


def _read_to(stream: str, consumers: Mapping[str, Mapping[str, int]]) -> int:
    """The offset up to which every registered consumer has read a stream; 0 when one does not know the stream."""
    return min((offsets.get(stream, START) for offsets in consumers.values()), default=1 << 62)


def _aged(stream: str, found: Sequence[Segment]) -> Iterator[_Aged]:
    """The sealed segments of a stream in order, up to the first open one. The age of a segment is never greater than of one before it."""
    latest = 0
    for segment in itertools.takewhile(lambda segment: segment.sealed, found):
        latest = max(latest, segment.modified_ns)
        yield latest, stream, segment.base, segment


def _of_need(aged: Iterator[_Aged], oldest_ns: int, read_to: int, needed: bool) -> Iterator[_Aged]:
    """Segments that are not too old, and that some consumer needs, or none."""
    return (item for item in aged if item[0] >= oldest_ns and (item[3].limit > read_to) is needed)
