"""What a log lacks that a reader was to read: an error or, when the reader is told to go on, rows that say so.

A stream that is gone was read when the ledger says that it ended at or before the query's offset. A stream that was born after the last line of the
ledger that the query knows, and is gone, was never read. Without a ledger only what this process has seen counts: a sealed end that it has reached.
"""

import time
from collections.abc import Mapping, Set
from typing import Final, NamedTuple

from framegate.proxy.pipeline.position import Lost, Position
from framegate.proxy.tap.ledger import LEDGER_NAME, Ledger, StreamRecord
from framegate.proxy.tap.record import DIRECTIONS

UNKNOWN_END: Final = -1
Pairs = tuple[tuple[str | None, str], ...]
_ANY: Final[Pairs] = tuple((None, direction) for direction in DIRECTIONS)
LEDGER_STREAM: Final = LEDGER_NAME.partition(".")[0]  # Stands for all streams of which the ledger no longer tells. No stream has this name.


class DataLossError(RuntimeError):
    """Frames that were to be read are gone or damaged. With ``failOnDataLoss=false`` the reader goes on without them."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"{detail}. What the log holds no more cannot be read: see the tap's budget and the source's option consumer, "
            "or go on without it with failOnDataLoss=false (framegate pipeline run --go-on), which makes a gap of it"
        )


class Loss(NamedTuple):
    """A range of a stream that cannot be read: rows of kind gap and certainty ``unknown``, one for each listener and direction that it may be
    about.
    """

    stream: str
    # offset, end: where it begins, and where the stream goes on; ``UNKNOWN_END``: not known
    offset: int
    end: int
    reason: int  # ``REASON_VANISHED`` or ``REASON_DAMAGED``
    # from_ns, until_ns: capture times between which it lies; 0: unknown
    from_ns: int
    until_ns: int
    pairs: Pairs  # (listener, direction); listener None: any
    node: str = ""  # of the stream; "": the one in its name


def pairs_of(ledger: Ledger, stream: str) -> Pairs:
    """The listeners and directions that a stream may have had, according to the ledger."""
    stream_record = ledger.streams.get(stream)
    return tuple(stream_record.tapped) if stream_record is not None and stream_record.tapped else _ANY


class Vanished:
    """Judges the streams without segments: those of ``start``, and those that were born since. The folders were listed before the ledger was read, so
    a stream that is gone has its line.

    Args:
        last: streams that were born behind this line of the ledger are not judged.
        ends, folders: of the streams that have segments, and a folder.
        fault: what is wrong with the ledger, in words; "" for nothing.
        reached: sealed ends that were seen before, of any stream.
        registered: the reader is a consumer: the ledger first forgets what this reader has read.
    """

    def __init__(
        self,
        start: Position,
        last: int,
        *,
        ends: Mapping[str, int],
        folders: Set[str],
        ledger: Ledger,
        fault: str,
        reached: Mapping[str, int],
        registered: bool,
    ) -> None:
        self.streams: dict[str, int] = {}  # those that may still go on, and where
        self.born: list[str] = []  # those that have nothing yet
        self.lost: dict[str, Lost] = {}  # what was to be read, as in ``Position``
        self.messages: dict[str, str] = {}  # the text for each that is lost
        self._start = start
        self._folders = folders
        self._ledger = ledger
        self._reached = reached
        self._registered = registered
        self._now_ns = time.time_ns()
        self._check_ledger(fault)
        base = last if start.ledger is None else start.ledger if start.ledger <= ledger.last else 0
        since = {stream for stream, stream_record in ledger.streams.items() if base < stream_record.born <= last}
        for stream in sorted((since | set(start.born) | start.streams.keys()) - ends.keys()):
            self._check(stream, start.streams.get(stream, 0), ledger.streams.get(stream))

    def _check_ledger(self, fault: str) -> None:
        """Note a loss if the ledger no longer tells of every stream that was born since."""
        ledger, known = self._ledger, self._start.ledger
        words = ""
        if known is not None and not ledger.present:
            words = "the tap's ledger is gone"
        elif fault and fault != self._start.damage:
            words = fault
        elif known is not None and ledger.forgotten > known:
            words = f"the tap's ledger has forgotten streams up to line {ledger.forgotten}, this query knows those up to {known}"
        if words:
            self.lost[LEDGER_STREAM] = (known or 0, max(ledger.last, known or 0), 0, self._now_ns)
            self.messages[LEDGER_STREAM] = f"{words}: whether streams came and went unread, nobody knows"

    def _check(self, stream: str, offset: int, stream_record: StreamRecord | None) -> None:
        if stream_record is None:
            self._check_unknown(stream, offset)
        elif stream_record.end is not None:
            if stream_record.end > offset:
                self._lose(stream, offset, stream_record.end, stream_record.born_ns)
        elif stream_record.deleted_to > offset:
            self._lose(stream, offset, stream_record.deleted_to, stream_record.born_ns)
            self.streams[stream] = stream_record.deleted_to
        elif stream not in self._start.streams:
            self.born.append(stream)
        elif stream in self._folders:
            self.streams[stream] = offset  # retention took all that there was, and more will come
        else:
            self._lose(stream, offset, UNKNOWN_END, stream_record.born_ns)

    def _check_unknown(self, stream: str, offset: int) -> None:
        """The same for a stream that is not in the ledger."""
        reached = self._reached.get(stream)
        if stream in self._folders:
            self.streams[stream] = offset
        elif reached is not None and reached <= offset:
            return
        elif self._start.ledger is not None and self._ledger.present and self._registered and not self._ledger.forgotten:
            return  # the ledger knew it, and forgets only what every consumer has read
        else:
            self._lose(stream, offset, UNKNOWN_END if reached is None else reached, 0)

    def _lose(self, stream: str, offset: int, end: int, from_ns: int) -> None:
        self.lost[stream] = (offset, end, from_ns, self._now_ns)
        what = "unknown" if end == UNKNOWN_END else str(end)
        self.messages[stream] = f"stream {stream} is gone, it was read up to {offset}, its end is {what}"
