"""The machine's clock: whether the kernel knows it for synchronised, and whether it was set while framegate ran. Certificates end by it."""

import ctypes
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Final

from control.doctor.finding import Finding
from control.doctor.surroundings import Surroundings

__all__ = ["ClockState", "kernel_clock", "look", "stepped"]

_UNSYNCHRONISED: Final = 0x40
"""STA_UNSYNC of adjtimex(2)."""
_ERROR: Final = 5
"""TIME_ERROR, what the call returns then."""
_FAR_S: Final = 1.0
_WATCHED_S: Final = 0.1
_STEP_S: Final = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class ClockState:
    """What the kernel says of its clock. Attributes: ``synchronised``; ``most_error_s``, by which it may be wrong at most, as it estimates."""

    synchronised: bool
    most_error_s: float


class _Timex(ctypes.Structure):
    """``struct timex`` as far as it is read, with room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def kernel_clock() -> ClockState:
    """Asks, and sets nothing. Raises OSError: it is not allowed here."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = _Timex()
    answer = libc.adjtimex(ctypes.byref(state))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return ClockState(not state.status & _UNSYNCHRONISED and answer != _ERROR, state.maxerror / 1e6)


def stepped(
    wait: Callable[[float], None] = time.sleep, realtime: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
) -> float:
    """Seconds by which the clock was set within a tenth of a second, forwards or (below zero) backwards."""
    wall, grown = realtime(), monotonic()
    wait(_WATCHED_S)
    return (realtime() - wall) - (monotonic() - grown)


def look(around: Surroundings, ask: Callable[[], ClockState] = kernel_clock, step: Callable[[], float] = stepped) -> Iterator[Finding]:
    """The kernel's word, and a look at it for a moment. What certificates of peers imply, those say who meet the peers."""
    try:
        yield _kernel(ask())
    except OSError as error:
        yield Finding("clock", "synchronisation", "unknown", f"the kernel may not be asked here (adjtimex): {error.strerror or error}")
    by = step()
    if abs(by) < _STEP_S:
        yield Finding("clock", "steps", "ok", "none while it was looked at", figures={"step_s": round(by, 6)})
    else:
        advice = "find out what sets it in steps; a time service that slews (chrony's default) harms nothing"
        yield Finding("clock", "steps", "warning", f"it was set by {by:+.3f} s while it was looked at", advice, {"step_s": round(by, 6)})


def _kernel(state: ClockState) -> Finding:
    figures = {"most_error_s": state.most_error_s}
    advice = "run a time service (chronyd, systemd-timesyncd) on the node: certificates begin and end by this clock, and it stamps rows and the tap"
    if not state.synchronised:
        return Finding("clock", "synchronisation", "warning", "the kernel does not know the clock for synchronised", advice, figures)
    words = f"the kernel knows the clock for synchronised, to {state.most_error_s:.3g} s at worst"
    if state.most_error_s > _FAR_S:
        return Finding("clock", "synchronisation", "warning", words, advice, figures)
    return Finding("clock", "synchronisation", "ok", words, figures=figures)
