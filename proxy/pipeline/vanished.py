"""Which streams a query was to read and cannot, because they are gone: judged from the ledger, and from what the planner itself saw.

A stream that is gone was read when the ledger says that it ended at or before the query's offset. One that was born behind the query's last line of
the ledger, and is gone, was never read at all. Without a ledger only what this process saw itself counts: a sealed end that was reached.
"""

import dataclasses
from collections.abc import Mapping, Set
from typing import Final

from framegate.proxy.pipeline.loss import UNKNOWN_END
from framegate.proxy.pipeline.position import Lost, Position
from framegate.proxy.tap.ledger import LEDGER_NAME, Ledger, StreamRecord

__all__ = ["LEDGER_STREAM", "Inventory", "Vanished", "find_vanished"]

LEDGER_STREAM: Final = LEDGER_NAME.partition(".")[0]
"""Stands for all streams that nobody knows of any more. No stream is called so."""


@dataclasses.dataclass(frozen=True, slots=True)
class Inventory:
    """What was in a tap directory. The folders were listed before the ledger was read, so what is gone has its line.

    Attributes:
        ends: of the streams that have segments.
        folders: streams that have a folder at least.
        ledger: as it is now.
        fault: what is wrong with it, in words; empty when nothing is.
        reached: sealed ends that were seen before, of any stream.
        registered: the ledger forgets first what this reader has read.
        now_ns: wall clock.
    """

    ends: Mapping[str, int]
    folders: Set[str]
    ledger: Ledger
    fault: str
    reached: Mapping[str, int]
    registered: bool
    now_ns: int


@dataclasses.dataclass(slots=True)
class Vanished:
    """The judgement on all streams without segments.

    Attributes:
        streams: those that may still go on, and where.
        born: those that have nothing yet.
        lost: what was to be read, as in ``Position``.
        messages: what to say of each that is lost.
    """

    streams: dict[str, int] = dataclasses.field(default_factory=dict)
    born: list[str] = dataclasses.field(default_factory=list)
    lost: dict[str, Lost] = dataclasses.field(default_factory=dict)
    messages: dict[str, str] = dataclasses.field(default_factory=dict)

    def lose(self, stream: str, lost: Lost, words: str) -> None:
        """Note a loss."""
        self.lost[stream] = lost
        self.messages[stream] = words


def find_vanished(start: Position, found: Inventory, last: int) -> Vanished:
    """Judge what has no segments: the streams of ``start``, and those that were born since, up to the ledger's line ``last``."""
    vanished = Vanished()
    _check_ledger(start, found, vanished)
    base = last if start.ledger is None else start.ledger if start.ledger <= found.ledger.last else 0
    since = {stream for stream, stream_record in found.ledger.streams.items() if base < stream_record.born <= last}
    for stream in sorted((since | set(start.born) | start.streams.keys()) - found.ends.keys()):
        _check(start, found, stream, vanished)
    return vanished


def _check_ledger(start: Position, found: Inventory, vanished: Vanished) -> None:
    """Whether the ledger still tells of everything that was born since, and whether it ever told of all."""
    ledger = found.ledger
    words = ""
    if start.ledger is not None and not ledger.present:
        words = "the tap's ledger is gone"
    elif found.fault and found.fault != start.damage:
        words = found.fault
    elif start.ledger is not None and ledger.forgotten > start.ledger:
        words = f"the tap's ledger has forgotten streams up to line {ledger.forgotten}, this query knows those up to {start.ledger}"
    if words:
        known = start.ledger or 0
        lost = (known, max(ledger.last, known), 0, found.now_ns)
        vanished.lose(LEDGER_STREAM, lost, f"{words}: whether streams came and went unread, nobody knows")


def _check(start: Position, found: Inventory, stream: str, vanished: Vanished) -> None:
    offset = start.streams.get(stream, 0)
    stream_record = found.ledger.streams.get(stream)
    if stream_record is None:
        _check_unknown(start, found, stream, offset, vanished)
    elif stream_record.end is not None:
        if stream_record.end > offset:
            _lose(found, stream, stream_record, offset, stream_record.end, vanished)
    elif stream_record.deleted_to > offset:
        _lose(found, stream, stream_record, offset, stream_record.deleted_to, vanished)
        vanished.streams[stream] = stream_record.deleted_to
    elif stream not in start.streams:
        vanished.born.append(stream)
    elif stream in found.folders:
        vanished.streams[stream] = offset  # retention took all that there was, and more will come
    else:
        _lose(found, stream, stream_record, offset, UNKNOWN_END, vanished)


def _check_unknown(start: Position, found: Inventory, stream: str, offset: int, vanished: Vanished) -> None:
    """A stream of which no ledger tells."""
    reached = found.reached.get(stream)
    if stream in found.folders:
        vanished.streams[stream] = offset
    elif reached is not None and reached <= offset:
        return
    elif start.ledger is not None and found.ledger.present and found.registered and not found.ledger.forgotten:
        return  # the ledger knew it, and forgets only what every consumer has read
    else:
        _lose(found, stream, None, offset, UNKNOWN_END if reached is None else reached, vanished)


def _lose(found: Inventory, stream: str, stream_record: StreamRecord | None, offset: int, end: int, vanished: Vanished) -> None:
    what = "unknown" if end == UNKNOWN_END else str(end)
    words = f"stream {stream} is gone, it was read up to {offset}, its end is {what}"
    vanished.lose(stream, (offset, end, 0 if stream_record is None else stream_record.born_ns, found.now_ns), words)
