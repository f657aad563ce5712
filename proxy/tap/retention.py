"""What of the log is deleted, and when. Run by the control process once a second or so; nobody else deletes.

Rules: only sealed segments go, in a stream the oldest first. A segment older than ``max_age_ms`` goes. While all streams together are
over the budget, segments go that every registered consumer has read, oldest first; when that is not enough, segments go that some
consumer still needs, and they are counted: a dead consumer must not fill the disk. A log within budget keeps what was read, so that a
second query, or a human, can still look back.

A consumer whose file cannot be read stands where it was last seen, and when it was never seen, at the beginning of everything.

Writers do not wait for a sweep, so each one leaves room for as much as the log grew since the last.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence, Set

from proxy.tap.consumer import read_consumers
from proxy.tap.log_reader import START, Segment, segments, streams

NS_PER_MS = 1_000_000


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

    @property
    def consumers(self) -> Mapping[str, Mapping[str, int]]:
        """Where each consumer stood at the last sweep."""
        return self._known

    def sweep(self, now_ns: int, live: Set[str] = frozenset()) -> Sweep:
        """Delete what is due.

        Args:
            now_ns: wall clock.
            live: streams that are being written; their folders stay even when empty.
        """
        listed = {stream: segments(self._directory, stream) for stream in streams(self._directory)}
        self._on_listed(listed)
        usage = sum(segment.size for found in listed.values() for segment in found)
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
            unread += _needed(segment, consumers)
        gone = set(deleted)
        for stream, found in listed.items():
            if stream not in live and all(segment in gone for segment in found):
                error = self._remove_folder(stream) or error
        freed = sum(segment.size for segment in deleted)
        self._usage = usage - freed
        return Sweep(self._usage, len(deleted), freed, unread, max(0, self._usage - self._budget), error, unreadable)

    def _due(self, listed: Mapping[str, list[Segment]], consumers: Mapping[str, Mapping[str, int]], excess: int, now_ns: int) -> list[Segment]:
        """The segments to delete, in order."""
        due: list[Segment] = []
        for segment, age_from_ns in _oldest_first(listed):
            if self._max_age_ns and age_from_ns < now_ns - self._max_age_ns:
                due.append(segment)
                excess -= segment.size
        rest = [segment for segment, _ in _oldest_first(listed) if segment not in due]
        for segment in sorted(rest, key=lambda segment: _needed(segment, consumers)):
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


def _needed(segment: Segment, consumers: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a registered consumer has not read all of a segment; one that does not know the stream has yet to read it."""
    return any(offsets.get(segment.stream, START) < segment.limit for offsets in consumers.values())


def _oldest_first(listed: Mapping[str, list[Segment]]) -> list[tuple[Segment, int]]:
    """Sealed segments by age, in each stream in order whatever their times; with the time each counts from."""
    aged: list[tuple[int, str, int, Segment]] = []
    for stream, found in listed.items():
        latest = 0
        for segment in found:
            if not segment.sealed:
                break
            latest = max(latest, segment.modified_ns)
            aged.append((latest, stream, segment.base, segment))
    return [(segment, latest) for latest, _, _, segment in sorted(aged, key=lambda item: item[:3])]
