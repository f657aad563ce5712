"""What a log lacks that a reader was to read: an error, or, when it is told to go on, rows that say so."""

from typing import Final, NamedTuple

from framegate.proxy.tap.ledger import Ledger
from framegate.proxy.tap.record import DIRECTIONS

__all__ = ["UNKNOWN_END", "DataLossError", "Loss", "Pairs", "pairs_of"]

UNKNOWN_END: Final = -1
Pairs = tuple[tuple[str | None, str], ...]
_ANY: Final[Pairs] = tuple((None, direction) for direction in DIRECTIONS)


class DataLossError(RuntimeError):
    """Frames that were to be read are gone or damaged. ``failOnDataLoss=false`` goes on without them."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"{detail}. What the log holds no more cannot be read: see the tap's budget and the source's option consumer, "
            "or go on without it with failOnDataLoss=false (framegate pipeline run --go-on), which makes a gap of it"
        )


class Loss(NamedTuple):
    """A range of a stream that cannot be read: rows of kind gap and certainty ``unknown``, one for each listener and direction that it may be about.

    Attributes:
        stream: its name.
        offset: where it begins.
        end: where the stream goes on; ``UNKNOWN_END``: nobody knows.
        reason: ``REASON_VANISHED`` or ``REASON_DAMAGED``.
        from_ns, until_ns: capture times between which it lies; 0: unknown.
        pairs: (listener, direction); listener None: any.
    """

    stream: str
    offset: int
    end: int
    reason: int
    from_ns: int
    until_ns: int
    pairs: Pairs


def pairs_of(ledger: Ledger, stream: str) -> Pairs:
    """What can have been in a stream, as far as the ledger knows."""
    stream_record = ledger.streams.get(stream)
    return tuple(stream_record.tapped) if stream_record is not None and stream_record.tapped else _ANY
