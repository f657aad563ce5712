"""What a tap directory should have according to its ledger; used by ``completeness`` (``tap verify``) and by the Spark source.

A stream should exist from the offset up to which retention deleted it to its end; a stream without an end is being written. A ledger that is damaged,
lost, absent, or does not know a stream, does not tell which other streams existed.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from framegate.proxy.tap.ledger import Ledger, StreamRecord, read_ledger
from framegate.proxy.tap.record import LOCK_NAME
from framegate.proxy.tap.store import is_url

LIVE_S: Final = 15.0  # Greatest age of the last heartbeat of a running framegate; it renews the heartbeat each second
_LOOKS: Final = 8
_LOOK_S: Final = 0.25


def expected_start(stream_record: StreamRecord | None, base: int) -> int:
    """The offset from which a stream should exist. ``stream_record``: of the ledger; None: it does not know the stream. ``base``: of the oldest
    segment. Retention writes to the ledger before it deletes, so the expected start may lie before it.
    """
    return base if stream_record is None or stream_record.adopted else min(base, stream_record.deleted_to)


def expected_end(stream_record: StreamRecord | None) -> int | None:
    """The offset at which a stream should end exactly; None: it is not known, or the stream is being written."""
    return None if stream_record is None else stream_record.end


def ledger_faults(ledger: Ledger, strangers: Iterable[str]) -> Iterator[str]:
    """What is wrong with a ledger itself. ``ledger``: of a tap directory. ``strangers``: streams that exist and that the ledger does not know; a
    damaged ledger may have had their lines.
    """
    strangers = list(strangers)
    if not ledger.present:  # with their number, so that an acceptance does not cover a later loss
        yield f"the ledger is missing, so it is not known whether streams were deleted (streams found: {len(strangers)})"
    if ledger.damage:
        yield f"the ledger is damaged: {ledger.damage}"
    if ledger.lost:
        yield f"the ledger was lost: {ledger.lost}"
    for name in strangers if ledger.present and not ledger.damage else ():
        yield f"{name} is not in the ledger; it is not known what else the ledger lacks"


def is_written(directory: str, sleep: Callable[[float], object] = time.sleep) -> bool:
    """Whether a framegate writes to the directory now, that is, holds the lock. Where that cannot be found out: whether the last heartbeat is recent
    by our clock, or a heartbeat follows within 2 s. In a store a log counts as written unless its framegate had ended in order.
    """
    if is_url(directory):
        shipped = read_ledger(directory).shipped
        return shipped is None or not shipped.stopped
    path = os.path.join(directory, LOCK_NAME)
    try:
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return _shows_life(path, sleep)  # only the owner may lock it, or the file system has no locks
    return False


def _shows_life(path: str, sleep: Callable[[float], object]) -> bool:
    try:
        before_ns = os.stat(path).st_mtime_ns
        if abs(time.time() - before_ns / 1e9) < LIVE_S:
            return True
        for _ in range(_LOOKS):
            sleep(_LOOK_S)
            if os.stat(path).st_mtime_ns != before_ns:
                return True
    except FileNotFoundError:
        return False
    return False
