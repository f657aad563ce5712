"""Ships a tap directory to an object store: sealed segments, then the ledger with a line that says how far.

Theory of operation. What is shipped follows from the store, so nothing is remembered here, and a shipper may be killed at any time. A pass reads the
ledger, sends every sealed segment that the store lacks, and reads the ledger again. If it has changed, the pass is repeated; otherwise every segment
that it promises was sent, and every hole is a line of it. Then the stored ledger is replaced, ledger and progress in one request, so that a reader
never sees one without the other. It is replaced only if nobody else has replaced it. If somebody has (two logs of one node's name), no later time is
complete until that one was not heard for ``SILENT_INTERVALS``: which streams it has begun meanwhile is not known here.

A segment is sent, read back and compared by CRC. It replaces only an object whose CRC was found to differ, so nothing that arrives late replaces what
was compared since. One that is there at the start, and that the stored ledger does not include yet, is read back, too,
and so is the stored ledger.

The stored ledger keeps the streams of earlier logs of the node (a directory on a volume that was lost), and those that the node's ledger has dropped.

Until when a stream is complete (``until_ns``), although it has no end yet, is known in two ways. Control says that all frames seen up to a time are
on disk (``Told.idle_ns``), and what is not shipped begins later. Or a block of a later window is shipped: totals of a window are written before, or
in, the first block of the next one, unless a write failed; so control must have seen no failed write in the 5 s before that block. If the clock is
set back, the second way waits until the clock has passed its former time. A time is never later than the present one.
"""

import bisect
import contextlib
import dataclasses
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from framegate.proxy.tap.consumer import write_consumer
from framegate.proxy.tap.expected import is_written
from framegate.proxy.tap.ledger import LEDGER_NAME, SILENT_INTERVALS, Ledger, Shipped, compacted, content_of, encode, joined, ledger_of
from framegate.proxy.tap.log_reader import LogError, Segment, segments, streams, walk_segment
from framegate.proxy.tap.record import WINDOW_NS
from framegate.proxy.tap.retention import SETTLED_NS
from framegate.proxy.tap.store import AbsentError, ConflictError, Store, StoreError, file_chunks, node_of

CONSUMER: Final = "ship"  # the consumer of the log as which a shipper registers
PASSES: Final = 5
SENT: Final = 2  # how often an object is sent that the store does not take whole
TOLD_AFTER_S: Final = 2.0  # what control tells is up to 1 s old, and what a processor publishes, a poll
FAILED_BEFORE_NS: Final = 5_000_000_000  # a processor turns blocks of failed writes into gaps in its next poll
START_NS: Final = 60_000_000_000  # at the start the clock may have been set back by this much a moment ago
STEP_NS: Final = 100_000_000


class ToldStream(NamedTuple):
    """What control knows of a stream that is being written. Wall clock, 0: never."""

    idle_ns: int  # all frames seen up to this time are on disk
    failed_ns: int  # when control has seen the last failed write


class Told(NamedTuple):
    """What control knows. ``at_ns``, ``at_s``: when, wall clock and monotonic. ``streams``: that processors write."""

    at_ns: int
    at_s: float
    streams: Mapping[str, ToldStream]


@dataclasses.dataclass(slots=True)
class _Stream:
    """A stream in the store."""

    end: int = 0  # the logical offset up to which it was sent
    until_ns: int = 0  # before this time no frame is missing
    newest_ns: int = 0  # the last time in the blocks sent by this shipper; 0: none was
    last_ns: int = 0  # an earlier value of it that is to be judged
    found_s: float = 0.0  # when that was found, monotonic; 0: nothing is to be judged
    there: set[str] | None = None  # the objects found at the start; None: not listed yet
    listed: list[Segment] = dataclasses.field(default_factory=list)  # the segments, as the folder was when it had changed last
    # changed_ns, listed_ns: that time, and when it was listed, wall clock
    changed_ns: int = -1
    listed_ns: int = 0


class Shipper:
    """Ships one directory. Not thread safe; blocks on the disk and on the store. Raises OSError, of which StoreError is one; then call again
    later.
    """

    def __init__(
        self,
        directory: str,
        store: Store,
        *,
        interval_ms: int = 60_000,
        bandwidth: int = 0,
        register: bool = False,
        clock_ns: Callable[[], int] = time.time_ns,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Nothing is read before the first pass. ``interval_ms``: of ``Shipped``. ``bandwidth``: bytes per second that are sent at most, 0:
        unlimited. What is read back is as much again.
        """
        # sent, sent_bytes: segments that were sent
        self.sent = 0
        self.sent_bytes = 0
        self._directory = directory
        self._store = store
        self._interval_ms = interval_ms
        self._bandwidth = bandwidth
        self._register = register
        self._clock_ns = clock_ns
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._writer = uuid.uuid4().hex
        self._stored: Ledger | None = None
        self._version: Mapping[str, Any] | None = None
        self._streams: dict[str, _Stream] = {}
        self._at_ns = 0
        self._replaced = False  # another shipper replaced the stored ledger since this one did
        self._alone_s = -1e9  # until then, monotonic, the other one may replace it again
        self._free_s = 0.0  # when the bandwidth allows the next bytes
        self._wrote_s = -1e9
        self._look_ns = clock_ns()
        self._look_s = monotonic_s()
        self._trusted_ns = self._look_ns + START_NS  # blocks before may be older than their times

    def look(self, told: Told | None, *, last: bool = False) -> bool:
        """Send what is new, and replace the stored ledger when that is due. ``told``: by control, before this call; None: nothing is known of streams
        that are being written. ``last``: replace the stored ledger in any case. Returns whether the stored ledger was replaced.
        """
        self._see_clock()
        if self._stored is None:
            self._begin()
        sent = self.sent
        for _ in range(PASSES):
            content = content_of(self._directory)
            names = streams(self._directory)
            listed_s = self._monotonic_s()
            rest = {name: self._send(name) for name in names}
            if content_of(self._directory) == content:
                break
        else:
            return False
        if self.sent > sent:
            self._report(set(names))
        if not last and self._monotonic_s() - self._wrote_s < self._interval_ms / 1000:
            self._judge(told, rest, listed_s)
            return False
        ledger = ledger_of(content)
        self._judge(told, rest, listed_s)
        self._publish(ledger, told, set(names))
        return True

    # --- the clock ---------------------------------------------------------------------------------------------------------------

    def _see_clock(self) -> None:
        """When the wall clock was set back, frames of earlier times may come."""
        now_ns, now_s = self._clock_ns(), self._monotonic_s()
        past_ns = int((now_s - self._look_s) * 1e9)
        expected_ns = self._look_ns + past_ns
        if now_ns < expected_ns - STEP_NS:
            self._trusted_ns = max(self._trusted_ns, expected_ns)
            for stream in self._streams.values():
                stream.until_ns = min(stream.until_ns, now_ns - past_ns)
        self._look_ns, self._look_s = now_ns, now_s

    # --- the store ---------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Read how far the store is."""
        try:
            content, self._version = self._store.read(LEDGER_NAME)
        except FileNotFoundError:
            content, self._version = b"", None
        self._stored = ledger_of(content)
        shipped = self._stored.shipped
        self._streams = {name: _Stream(*facts) for name, facts in shipped.streams.items()} if shipped else {}
        self._at_ns = shipped.at_ns if shipped else 0
        if shipped and self._replaced:
            self._alone_s = self._monotonic_s() + SILENT_INTERVALS * max(self._interval_ms, shipped.interval_ms) / 1000
        self._replaced = False
        for stream in self._streams.values():
            stream.until_ns = min(stream.until_ns, self._clock_ns())
        self._report(set(streams(self._directory)))

    def _report(self, names: set[str]) -> None:
        if self._register:
            offsets = {name: stream.end for name, stream in self._streams.items() if name in names}
            write_consumer(self._directory, CONSUMER, offsets, self._clock_ns(), self._store.root)

    def _send(self, name: str) -> list[Segment]:
        """Send the sealed segments of a stream that the store lacks. Returns the others."""
        stream = self._streams.setdefault(name, _Stream())
        self._list(name, stream)
        first = bisect.bisect_left(stream.listed, stream.end, key=lambda segment: segment.limit)
        listed = [segment for segment in stream.listed[first:] if segment.limit > stream.end or not segment.sealed]
        for segment in listed:
            if not segment.sealed:
                break
            try:
                self._send_segment(stream, segment)
            except StoreError:
                raise
            except FileNotFoundError:  # retention took it, and the ledger has changed
                continue
            stream.end = segment.limit
            if self._monotonic_s() - self._wrote_s >= self._interval_ms / 1000:
                self._beat()
        return [segment for segment in listed if not segment.sealed]

    def _list(self, name: str, stream: _Stream) -> None:
        """List a stream if its folder has changed, and examine only what is not known to be sealed."""
        now_ns = time.time_ns()
        try:
            changed_ns = os.stat(os.path.join(self._directory, name)).st_mtime_ns
        except FileNotFoundError:
            stream.listed, stream.changed_ns = [], -1
            return
        if changed_ns != stream.changed_ns or stream.listed_ns < changed_ns + SETTLED_NS:
            known = {segment.base: segment for segment in stream.listed if segment.sealed}
            stream.listed, stream.changed_ns, stream.listed_ns = segments(self._directory, name, known), changed_ns, now_ns

    def _send_segment(self, stream: _Stream, segment: Segment) -> None:
        file = os.path.basename(segment.path)
        name = f"{segment.stream}/{file}"
        if stream.there is None:
            stream.there = {item.name for item in self._store.items(segment.stream)}
        crc = _crc(file_chunks(segment.path))
        stored, version = self._stored_crc(name) if file in stream.there else (-1, None)
        if stored != crc:
            for _ in range(SENT):
                with contextlib.suppress(ConflictError):  # another shipper was faster, or the answer was lost: what is there is compared
                    self._store.replace(name, self._paced(segment), version)
                stored, version = self._stored_crc(name)
                if stored == crc:
                    break
            else:
                raise StoreError(f"{self._store.root}/{name} is not what was sent: its CRC differs")
            self.sent += 1
            self.sent_bytes += segment.size
        stream.newest_ns = _last_ns(segment) or stream.newest_ns

    def _stored_crc(self, name: str) -> tuple[int, Mapping[str, Any] | None]:
        """The CRC of an object, and the version that has it; -1 and None: there is none."""
        try:
            chunks, version = self._store.chunks(name)
        except FileNotFoundError:
            return -1, None
        return _crc(chunks), version

    def _paced(self, segment: Segment) -> Iterator[memoryview]:
        """A segment's bytes, not faster than the bandwidth: the request, which sends all of them, begins behind the last one."""
        for chunk in file_chunks(segment.path):
            if self._bandwidth:
                now_s = self._monotonic_s()
                if self._free_s > now_s:
                    self._sleep(self._free_s - now_s)
                self._free_s = max(self._free_s, now_s) + len(chunk) / self._bandwidth
            yield chunk

    # --- what is complete --------------------------------------------------------------------------------------------------------

    def _judge(self, told: Told | None, rest: Mapping[str, list[Segment]], listed_s: float) -> None:
        """Move the times before which nothing is missing."""
        if told is None:
            return
        now_ns = self._clock_ns()
        for name, facts in told.streams.items():
            stream = self._streams.setdefault(name, _Stream())
            proven = [stream.until_ns]
            if not stream.found_s and stream.newest_ns != stream.last_ns:
                stream.last_ns, stream.found_s = stream.newest_ns, self._monotonic_s()
            if stream.found_s and told.at_s >= stream.found_s + TOLD_AFTER_S:
                stream.found_s = 0.0
                if self._trusted_ns < stream.last_ns <= now_ns and not stream.last_ns - FAILED_BEFORE_NS <= facts.failed_ns:
                    proven.append(stream.last_ns // WINDOW_NS * WINDOW_NS)
            begins_ns = min((_first_ns(segment) for segment in rest.get(name, ())), default=now_ns)
            if facts.idle_ns and told.at_s <= listed_s:
                proven.append(min(facts.idle_ns, begins_ns))
            stream.until_ns = min(max(proven), begins_ns, now_ns)
        self._at_ns = min(told.at_ns, now_ns)

    def _beat(self) -> None:
        """While there is much to send: say that the node is alive, and how far it is. The ledger stays: it promises no more than was sent."""
        assert self._stored is not None, "it was read"
        shipped = self._stored.shipped
        if shipped is not None:
            self._replace(self._stored, dataclasses.replace(shipped, heard_ns=self._clock_ns(), stopped=False, streams=self._facts()))

    def _publish(self, ledger: Ledger, told: Told | None, names: set[str]) -> None:
        """Replace the stored ledger after a pass."""
        assert self._stored is not None, "it was read"
        now_ns = self._clock_ns()
        written = is_written(self._directory)
        known = {**self._stored.streams, **ledger.streams}  # a log of the node that was lost never ends
        unfinished = {name for name, record in known.items() if record.end is None} | (names - known.keys())
        for name in names | known.keys() | unfinished | set(told.streams if told else ()):  # also those of which nothing was shipped
            self._streams.setdefault(name, _Stream())
        if not written:
            self._at_ns = now_ns
        shared = self._monotonic_s() < self._alone_s
        if shared and self._stored.shipped is not None:
            self._at_ns = min(self._at_ns, self._stored.shipped.at_ns)
        stopped = not written and not shared and not unfinished and ledger.present and not ledger.damage
        self._replace(
            ledger,
            Shipped(
                heard_ns=now_ns,
                at_ns=min(self._at_ns, now_ns),
                stopped=stopped,
                interval_ms=self._interval_ms,
                writer=self._writer,
                local_last=ledger.last,
                streams=self._facts(),
                node=node_of(self._store.root),
            ),
        )
        self._report(names)

    def _facts(self) -> dict[str, tuple[int, int]]:
        return {name: (stream.end, stream.until_ns) for name, stream in self._streams.items()}

    def _replace(self, ledger: Ledger, shipped: Shipped) -> None:
        assert self._stored is not None, "it was read"
        content = merged(self._stored, ledger, shipped, shipped.heard_ns)
        first = self._version is None
        try:
            self._write(content)
        except (ConflictError, AbsentError) as error:
            self._stored = None  # it is read again next time
            if first and isinstance(error, AbsentError):
                raise StoreError(f"there is no such bucket or container: {error}") from error
            self._replaced = isinstance(error, ConflictError)
            raise StoreError(f"{self._store.root}/{LEDGER_NAME} was replaced: does another framegate have this node's name?") from error
        self._stored = ledger_of(content)
        self._wrote_s = self._monotonic_s()

    def _write(self, content: bytes) -> None:
        """Replace the stored ledger if it is the known one, and read it back. Raises ConflictError: it is another one; StoreError: the store has it,
        but not whole.
        """
        for _ in range(SENT):
            refused: ConflictError | None = None
            try:
                self._version = self._store.replace(LEDGER_NAME, [content], self._version)
            except ConflictError as error:
                refused = error
            stored, version = self._store.read(LEDGER_NAME)
            if stored == content:  # also if it was refused: the answer to an earlier request was lost
                self._version = version
                return
            if refused or self._version is None or version["e_tag"] != self._version["e_tag"]:
                raise refused or ConflictError("it was replaced meanwhile")
        raise StoreError(f"{self._store.root}/{LEDGER_NAME} is not what was sent")


def merged(stored: Ledger, local: Ledger, shipped: Shipped, now_ns: int) -> bytes:
    """The content of the stored ledger. ``shipped``: for the last line."""
    before = stored.shipped.local_last if stored.shipped else 0
    unseen = local.sparse_to > before  # lines were dropped before they could be shipped
    cut = (stored.cut_from_ns, stored.cut_until_ns)
    cut = joined(cut, (local.cut_from_ns, local.cut_until_ns)) if unseen else cut
    last = max(stored.last, local.last)
    damage = local.damage or stored.damage
    content = compacted(
        {**stored.streams, **local.streams},
        now_ns,
        to=last,
        forgotten=max(stored.forgotten, local.forgotten),
        damage=damage,
        damaged_at=last if damage else 0,
        cut_from_ns=cut[0],
        cut_until_ns=cut[1],
        lost=local.lost or stored.lost or ("" if local.present else "the directory has none"),
    )
    streams = {name: {"end": end, "until_ns": until_ns} for name, (end, until_ns) in shipped.streams.items()}
    return content + encode({"n": last + 1, "ns": now_ns, "event": "shipped", **dataclasses.asdict(shipped), "streams": streams})


def _crc(chunks: Iterator[bytes | memoryview]) -> int:
    from isal.isal_zlib import crc32  # here, so that control does not load it

    crc = 0
    for chunk in chunks:
        crc = crc32(chunk, crc)
    return crc


def _last_ns(segment: Segment) -> int:
    """The last time in a segment; 0: it has no block that can be read."""
    last_ns = 0
    try:
        for ref in walk_segment(segment, segment.base):
            last_ns = ref.header.last_ns
    except LogError:  # readers of the store find it, too
        return 0
    return last_ns


def _first_ns(segment: Segment) -> int:
    """The earliest time in a segment that is being written; far away: it has no block."""
    first_ns = 1 << 62
    try:
        for ref in walk_segment(segment, segment.base):
            first_ns = min(first_ns, ref.header.first_ns)
    except LogError:
        return 0
    return first_ns
