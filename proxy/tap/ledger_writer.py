"""Appends lines to a tap's ledger and keeps it small. Used by control only; ``ledger`` describes the file."""

import contextlib
import errno
import os
import threading
from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

from framegate.proxy.tap.ledger import (
    LEDGER_NAME,
    Ledger,
    LedgerState,
    Pair,
    Span,
    StreamRecord,
    compacted,
    content_of,
    decode,
    encode,
    joined,
    kept_record,
    run_of,
)
from framegate.proxy.tap.log_segments import segments, streams
from framegate.proxy.tap.record import FILE_MODE

COMPACT_BYTES: Final = 1 << 20
KEPT_BYTES: Final = COMPACT_BYTES // 2  # Greatest size after a compaction, as far as it is due to deleted streams


class LedgerWriter:
    """Appends lines. Thread safe: each call holds a lock for its write and its fsync.

    A write that fails raises OSError, and a line about a stream that was never born ValueError. Then no part of the line is valid for a reader, and
    ``ledger`` is unchanged.

    ``directory``: of the tap; the caller holds its lock. A last line that a crash tore is cut off before the first append. ``known``: the number of
    the last line as noted elsewhere; 0: not noted.

    Raises OSError: the file cannot be read or created.
    """

    def __init__(self, directory: str, known: int = 0) -> None:
        self._directory = directory
        self._path = os.path.join(directory, LEDGER_NAME)
        self._lock = threading.Lock()
        self._state = LedgerState()
        content = content_of(directory)
        self.begun = content is None
        """The file did not exist."""
        self._size = self._state.read(content or b"")
        self._known = known
        self.loss = self._loss()
        """Which lines are lost, in words, until ``lost`` has written that; empty: none."""
        self._sound = content is not None and self._size == len(content)
        self._fd = self._open(self._path)
        if self.begun:
            self._sync_folder()
            self._sound = True

    def _loss(self) -> str:
        last = self._state.last
        if last == 0:
            there = [stream for stream in streams(self._directory) if segments(self._directory, stream)]
            if there or self._known:
                return f"its file was missing (streams found: {len(there)}), so it is not known whether streams were deleted"
        if last < self._known:
            return f"lines {last + 1} to {self._known} were missing, so it is not known what they said"
        return ""

    def lost(self, now_ns: int) -> None:
        """Write for good which lines are lost."""
        self._append({"event": "lost", "text": self.loss}, now_ns, behind=self._known)
        self.loss = ""

    def found_strange(self, stream: str, now_ns: int) -> None:
        """Write for good that a stream exists whose lines are lost, or which belongs to another log."""
        text = f"{stream} was not in the ledger, so it is not known what else the ledger lacks"
        self._append({"event": "lost", "text": text}, now_ns)

    @property
    def last(self) -> int:
        return self._state.last

    @property
    def ledger(self) -> Ledger:
        """Its present contents."""
        with self._lock:
            return self._state.frozen(present=True)

    @property
    def large(self) -> bool:
        """Whether ``compact`` is due."""
        return self._size > COMPACT_BYTES

    def born(self, stream: str, tapped: Iterable[Pair], now_ns: int) -> None:
        self._append({"event": "born", "stream": stream, "tapped": sorted(set(tapped))}, now_ns)

    def tapped(self, stream: str, tapped: Iterable[Pair], now_ns: int) -> None:
        """The pairs that rules can match changed in a stream that is being written."""
        self._append({"event": "tapped", "stream": stream, "tapped": sorted(set(tapped))}, now_ns)

    def ended(self, stream: str, end: int, now_ns: int, *, settled: bool) -> None:
        """A stream ends at this logical offset."""
        self._append({"event": "ended", "stream": stream, "end": end, "settled": settled}, now_ns)

    def deleted(self, stream: str, to: int, now_ns: int, from_ns: int = 0, until_ns: int = 0) -> None:
        """Blocks before an offset are about to be deleted; their data is of these times. From 0: any time since the birth of the stream; until 0: up
        to now.
        """
        self._append({"event": "deleted", "stream": stream, "to": to, "from_ns": from_ns, "until_ns": until_ns or now_ns}, now_ns)

    def adopted(self, stream: str, end: int, now_ns: int) -> None:
        """A stream exists that the ledger does not know; it ends here."""
        self._append({"event": "adopted", "stream": stream, "end": end}, now_ns)

    def compact(self, consumers: Mapping[str, Mapping[str, int]], now_ns: int) -> int:
        """Write the file again, without streams that are deleted completely. ``consumers``: for each registered consumer its offset in each stream.
        Streams that all have read are left out first, others only when the file would be too large. ``now_ns``: wall clock. Returns the number of
        streams left out.
        """
        with self._lock:
            streams = self._state.streams
            lines = {stream: encode(kept_record(stream, stream_record, now_ns)) for stream, stream_record in streams.items()}
            there = {run_of(stream) for stream, stream_record in streams.items() if not stream_record.gone}
            needed = {stream: _needed(stream, stream_record, consumers) for stream, stream_record in streams.items() if run_of(stream) not in there}
            size = sum(map(len, lines.values()))
            forgotten = self._state.forgotten
            for stream in sorted(needed, key=lambda stream: (needed[stream], streams[stream].born)):
                if needed[stream]:
                    if size <= KEPT_BYTES:
                        break
                    forgotten = max(forgotten, streams[stream].born)
                size -= len(lines.pop(stream))
            dropped = streams.keys() - lines.keys()
            cut = self._state.cut
            for stream_record in (streams[stream] for stream in dropped):
                cut = joined(cut, (stream_record.cut_from_ns, stream_record.cut_until_ns))
            self._rewrite(dropped, forgotten, cut, now_ns)
            return len(dropped)

    def close(self) -> None:
        with self._lock:
            os.close(self._fd)

    def _append(self, members: dict[str, Any], now_ns: int, behind: int = 0) -> None:
        with self._lock:
            if members["event"] in ("tapped", "ended", "deleted") and members["stream"] not in self._state.streams:
                raise ValueError(f"{members['event']}, but never born: {members['stream']}")
            record = {"n": max(self._state.last, behind) + 1, "ns": now_ns, **members}
            line = encode(record)
            if not self._sound:
                os.ftruncate(self._fd, self._size)
            self._sound = False
            if os.write(self._fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
            os.fsync(self._fd)
            self._sound = True
            self._size += len(line)
            self._state.last = record["n"]
            self._state.apply(decode(line[:-1]))

    def _rewrite(self, dropped: Set[str], forgotten: int, cut: Span, now_ns: int) -> None:
        state = self._state
        kept = {stream: stream_record for stream, stream_record in state.streams.items() if stream not in dropped}
        damaged = any(
            stream_record.born <= state.damaged_at for stream_record in kept.values()
        )  # a stream that the damaged line may be about still exists
        damage, damaged_at = (state.damage, state.damaged_at) if damaged else ("", 0)
        members = {"to": state.last, "forgotten": forgotten, "damage": damage, "damaged_at": damaged_at}
        content = compacted(kept, now_ns, **members, cut_from_ns=cut[0], cut_until_ns=cut[1], lost=state.lost)
        temporary = self._path + ".tmp"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        fd = self._open(temporary)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
            os.replace(temporary, self._path)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        os.close(self._fd)  # the new one is open
        self._fd, self._size, self._sound = fd, len(content), True
        state.streams, state.forgotten, state.cut, state.damage, state.damaged_at = kept, forgotten, cut, damage, damaged_at
        self._sync_folder()

    def _open(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)

    def _sync_folder(self) -> None:
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _needed(stream: str, stream_record: StreamRecord, consumers: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether some consumer has not read all of a stream."""
    return any(offsets.get(stream, 0) < (stream_record.end or 0) for offsets in consumers.values())
