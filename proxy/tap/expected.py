"""What a tap directory should have, by its ledger: asked by ``completeness`` (``tap verify``) and by the Spark source alike.

A stream is there from what retention took of it to its end; one without an end is being written. A ledger that is damaged, or was lost, or is
not there, or does not know a stream, leaves open what else there was.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from framegate.proxy.tap.ledger import Ledger, StreamRecord
from framegate.proxy.tap.record import LOCK_NAME

__all__ = ["LIVE_S", "expected_end", "expected_start", "is_written", "ledger_faults"]

LIVE_S: Final = 15.0
"""How long ago the last sign of life of who writes may be; there is one each second."""
_LOOKS: Final = 8
_LOOK_S: Final = 0.25


def expected_start(stream_record: StreamRecord | None, base: int) -> int:
    """From where on a stream should be there: an offset.

    Args:
        fate: what the ledger says of it; None: nothing.
        base: where its oldest segment begins. Retention says first what it takes, so that may lie before.
    """
    return base if stream_record is None or stream_record.adopted else min(base, stream_record.deleted_to)


def expected_end(stream_record: StreamRecord | None) -> int | None:
    """Where a stream should end, no earlier and no later; None: that is not known, or it is being written."""
    return None if stream_record is None else stream_record.end


def ledger_faults(ledger: Ledger, strangers: Iterable[str]) -> Iterator[str]:
    """What is wrong with a ledger itself.

    Args:
        ledger: of a tap directory.
        strangers: streams that are there, and that it should know and does not; a damaged one may have had their lines.
    """
    strangers = list(strangers)
    if not ledger.present:  # how many there are: where that was accepted, one that goes later was not
        yield f"there is no ledger beside {len(strangers)} streams: one that is gone cannot be told from one that never was"
    if ledger.damage:
        yield f"the ledger is damaged: {ledger.damage}"
    if ledger.lost:
        yield f"the ledger was lost: {ledger.lost}"
    for name in strangers if ledger.present and not ledger.damage else ():
        yield f"{name} is not in the ledger: what else is not nobody can tell"


def is_written(directory: str, sleep: Callable[[float], object] = time.sleep) -> bool:
    """Whether a framegate writes to the directory now: it holds the lock; or, where that cannot be asked, it gave a sign of life of late by our
    clock, or gives one while we look, whatever the clocks say.
    """
    path = os.path.join(directory, LOCK_NAME)
    try:
        with open(path, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return _shows_life(path, sleep)  # only its owner may ask, or nobody can
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
