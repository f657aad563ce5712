"""How far each registered consumer of the log is behind: bytes that it has yet to read, and how old the oldest of them are."""

import bisect
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from framegate.proxy.tap.log_reader import LogError, walk_segment
from framegate.proxy.tap.log_segments import START, Segment

__all__ = ["MAX_NAMED", "OTHERS", "Lag", "Lags"]

MAX_NAMED: Final = 50
"""Consumers that are told apart; those beyond, by name, stand together under ``OTHERS``: their bytes summed, the oldest of their times."""
OTHERS: Final = "others"
_MAX_NAME: Final = 128


class Lag(NamedTuple):
    """Of one consumer. ``unread``: bytes of the log; ``since_ns``: when the oldest frame of them was captured, wall clock; 0: there is none."""

    unread: int
    since_ns: int


class Lags:
    """Measures. Blocks on the file system: of what a consumer has yet to read in a stream, the header of one block, and that once as long as neither
    moves.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[str, int], int] = {}

    def measure(self, listed: Mapping[str, Sequence[Segment]], consumers: Mapping[str, Mapping[str, int]]) -> dict[str, Lag]:
        """The lag of each consumer, by its name as a text that can be shown.

        Args:
            listed: the segments that are there, in order, by stream.
            consumers: where each stands in each stream; one that a consumer does not know it has yet to read.
        """
        found: dict[str, Lag] = {}
        times: dict[tuple[str, int], int] = {}
        for number, name in enumerate(sorted(consumers)):
            lag = self._lag(listed, consumers[name], times)
            shown = OTHERS if number >= MAX_NAMED else name.encode(errors="replace").decode()[:_MAX_NAME]
            before = found.get(shown, Lag(0, 0))
            found[shown] = Lag(before.unread + lag.unread, _older(before.since_ns, lag.since_ns))
        self._times = times
        return found

    def _lag(self, listed: Mapping[str, Sequence[Segment]], offsets: Mapping[str, int], times: dict[tuple[str, int], int]) -> Lag:
        unread, since_ns = 0, 0
        for stream, segments in listed.items():
            offset = offsets.get(stream, START)
            ahead = segments[bisect.bisect_right(segments, offset, key=lambda segment: segment.limit) :]
            if not ahead:
                continue
            unread += sum(segment.limit - max(segment.base, offset) for segment in ahead)
            key = (stream, max(ahead[0].base, offset))
            if key not in times:
                times[key] = self._times.get(key) or _captured(ahead[0], key[1])
            since_ns = _older(since_ns, times[key])
        return Lag(unread, since_ns)


def _older(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


def _captured(segment: Segment, offset: int) -> int:
    """When the first frame of the block at an offset was captured; of what cannot be read, when its file was written last; 0: the block comes yet."""
    try:
        for ref in walk_segment(segment, offset):
            return ref.header.first_ns or segment.modified_ns
    except (OSError, LogError):
        return segment.modified_ns
    return 0
