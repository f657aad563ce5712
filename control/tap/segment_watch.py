"""Reports which segments of the tap's log began and ended, from the listings that the keeper makes anyway."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from framegate.proxy.tap.headers import Seal, decode_segment_header
from framegate.proxy.tap.log_reader import LogError, Segment, open_segment, segment_seal
from framegate.proxy.tap.record import SEGMENT_HEADER_BYTES, FormatError

SegmentTold = Callable[[Segment, int, Seal | None], None]
"""Called for a segment that began, or with its seal when it ended; with its creation time, wall clock in ns. Must not block."""


class SegmentWatch:
    """Compares listings. One thread. Segments sealed before the first listing are not reported; the earlier keeper has done that. Segments open then
    are reported once they are sealed. ``told``: gets each segment when it is first listed, and when it is listed as sealed; both, in that order, when
    that happens between two listings. ``failed``: gets the reason why a segment cannot be read; it is not read again before it is sealed.
    """

    def __init__(self, told: SegmentTold, failed: Callable[[str], None]) -> None:
        self._told: Final = told
        self._failed: Final = failed
        self._known: dict[str, dict[int, bool]] | None = None  # by stream and base: whether it was sealed
        self._lists: dict[str, Sequence[Segment]] = {}  # of streams that are reported completely

    def look(self, listed: Mapping[str, Sequence[Segment]]) -> None:
        """Report what is new in a listing of all streams. The same list object as before has nothing new."""
        known, self._known = self._known, {}
        lists, self._lists = self._lists, {}
        for stream, found in listed.items():
            if known is not None and lists.get(stream) is found:
                self._known[stream], self._lists[stream] = known[stream], found
                continue
            now = self._known[stream] = {segment.base: segment.sealed for segment in found}
            if known is None or self._compare(found, known.get(stream, {}), now):
                self._lists[stream] = found

    def _compare(self, found: Sequence[Segment], before: Mapping[int, bool], now: dict[int, bool]) -> bool:
        """Report what is new in a stream; False: a segment has no header yet."""
        whole = True
        for segment in found:
            sealed = before.get(segment.base)
            if sealed is True or sealed is segment.sealed:
                continue
            try:
                if not self._report(segment, began=sealed is None):
                    del now[segment.base]  # just created: the next listing finds its header
                    whole = False
            except (OSError, LogError, FormatError) as error:
                self._failed(str(error))
        return whole

    def _report(self, segment: Segment, *, began: bool) -> bool:
        created_ns = _created_ns(segment)
        if created_ns is None:
            return False
        if began:
            self._told(segment, created_ns, None)
        if segment.sealed:
            seal = segment_seal(segment)
            if seal is not None:
                self._told(segment, created_ns, seal)
        return True


def _created_ns(segment: Segment) -> int | None:
    """When a segment was created; None while its header is not there."""
    descriptor = open_segment(segment.path)
    with open(descriptor, "rb", buffering=0) as file:
        head = file.read(SEGMENT_HEADER_BYTES)
    if len(head) < SEGMENT_HEADER_BYTES and not segment.sealed:
        return None
    return int(decode_segment_header(head)["created_ns"])
