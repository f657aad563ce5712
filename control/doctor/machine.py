"""The machine: the kernel's settings of connections, buffers and memory, and its clock, by which certificates end.

``framegate check`` warns about settings that limit what the configuration asks for.
"""

import ctypes
import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Final

from framegate.control.configuration.units import format_size
from framegate.control.doctor.finding import Finding, judged, unknown
from framegate.control.doctor.surroundings import Surroundings, most_connections
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.model import MIB

_NET: Final = "proc/sys/net"
_SMALL_WINDOW: Final = MIB
_NEARLY_PERCENT: Final = 80
_STRICT_OVERCOMMIT: Final = 2
_UNSYNCHRONISED: Final = 0x40  # STA_UNSYNC of adjtimex(2)
_ERROR: Final = 5  # TIME_ERROR, which the call returns then
_FAR_S: Final = 1.0
_WATCHED_S: Final = 0.1
_STEP_S: Final = 0.02
_kernel, _clock = functools.partial(judged, "kernel"), functools.partial(judged, "clock")


def look_at_kernel(around: Surroundings) -> Iterator[Finding]:
    """Each setting; one that cannot be seen is unknown."""
    for name in ("tcp_rmem", "tcp_wmem"):
        yield _window(around, name)
    yield _ports(around)
    yield from _keepalive(around)
    yield _overcommit(around)
    yield _huge_pages(around)
    yield _tracking(around)


def _unseen(name: str, besides: str = "") -> Finding:
    return unknown("kernel", name, f"cannot be seen here{besides}")


def _window(around: Surroundings, name: str) -> Finding:
    words = (around.text(f"{_NET}/ipv4/{name}") or "").split()
    if len(words) != 3 or not words[2].isdecimal():
        return _unseen(f"net.ipv4.{name}")
    most, small = int(words[2]), int(words[2]) < _SMALL_WINDOW
    advice = f'sysctl -w net.ipv4.{name}="{words[0]} {words[1]} 6291456": over long ways a connection is no faster than its buffer allows'
    said = f"buffers grow up to {format_size(most)}{' only' if small else ''}"
    return _kernel(f"net.ipv4.{name}", said, {"most_bytes": most}, warning=advice if small else None)


def _ports(around: Surroundings) -> Finding:
    subject = "net.ipv4.ip_local_port_range"
    words = (around.text(f"{_NET}/ipv4/ip_local_port_range") or "").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return _unseen(subject)
    count = int(words[1]) - int(words[0]) + 1
    fits = f"{count:,} ports: as many connections to one address of an upstream"
    most = None if around.config is None else most_connections(around.config)
    if around.config is not None and most is not None:
        addresses = {item.name: sum(parse_address(text).kind != "unix" for text in item.addresses) for item in around.config.upstreams}
        tight = [name for name, number in addresses.items() if most > count * number > 0]
        if tight:
            advice = (
                'sysctl -w net.ipv4.ip_local_port_range="1024 65535" (a pod: securityContext.sysctls), more endpoints, or lower limits.connections'
            )
            said = f"{fits}, and {most:,} connections may be open to {', '.join(tight)}"
            return _kernel(subject, said, {"ports": count, "connections": most}, warning=advice)
    return _kernel(subject, fits, {"ports": count})


def _keepalive(around: Surroundings) -> Iterator[Finding]:
    for index, item in enumerate(() if around.config is None else around.config.listeners):
        if item.timeouts.idle_ms == item.timeouts.max_connection_age_ms == 0 and item.socket.keep_alive is None:
            advice = "set socket.keep_alive: {}, or timeouts.idle: a client that is gone without a word keeps its connection for ever"
            yield _kernel(f"listeners[{index}] ({item.name}), keep-alive", "is off, and idle connections never end", warning=advice)


def _overcommit(around: Surroundings) -> Finding:
    value = around.number("proc/sys/vm/overcommit_memory")
    if value is None:
        return _unseen("vm.overcommit_memory")
    advice = "sysctl -w vm.overcommit_memory=0: mappings that are never filled are refused, and a processor may fail to start beside a full pool"
    strict = value == _STRICT_OVERCOMMIT
    said = "is 2: the kernel counts what is asked for, not what is used" if strict else f"is {value}"
    return _kernel("vm.overcommit_memory", said, {"value": value}, warning=advice if strict else None)


def _huge_pages(around: Surroundings) -> Finding:
    text = around.text("sys/kernel/mm/transparent_hugepage/enabled")
    if text is None:
        return _unseen("transparent huge pages")
    chosen = next((word.strip("[]") for word in text.split() if word.startswith("[")), text)
    advice = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled on the node: memory that was given back in small pieces may stay in use"
    always = chosen == "always"
    return _kernel("transparent huge pages", "are always on" if always else f"are {chosen}", {"value": chosen}, warning=advice if always else None)


def _tracking(around: Surroundings) -> Finding:
    subject = "net.netfilter.nf_conntrack_max"
    most, count = (around.number(f"{_NET}/netfilter/{name}") for name in ("nf_conntrack_max", "nf_conntrack_count"))
    if most is None or count is None or most <= 0:
        return _unseen(subject, ": it is the node's (or connections are not tracked)")
    percent = 100 * count / most
    advice = f"sysctl -w net.netfilter.nf_conntrack_max={2 * most} on the node: beyond it new connections are lost without a word"
    words, figures = f"{count:,} of {most:,} connections are tracked ({percent:.0f} %)", {"count": count, "limit": most}
    return _kernel(subject, words, figures, warning=advice if percent >= _NEARLY_PERCENT else None)


@dataclasses.dataclass(frozen=True, slots=True)
class ClockState:
    """What the kernel says of its clock: whether it is ``synchronised``; ``most_error_s``, its estimate of the largest error."""

    synchronised: bool
    most_error_s: float


class _Timex(ctypes.Structure):
    """``struct timex`` as far as it is read, with space for the rest."""

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
    """Read the clock's state, without a change. Raises OSError: it is not allowed here."""
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


def look_at_clock(around: Surroundings, ask: Callable[[], ClockState] = kernel_clock, step: Callable[[], float] = stepped) -> Iterator[Finding]:
    """Whether the kernel says that its clock is synchronised, and whether it is set in steps."""
    try:
        state = ask()
    except OSError as error:
        yield unknown("clock", "synchronisation", f"the kernel may not be asked here (adjtimex): {error.strerror or error}")
    else:
        advice = (
            "run a time service (chronyd, systemd-timesyncd) on the node: certificates begin and end by this clock, and it stamps rows and the tap"
        )
        said = f"the kernel reports that the clock is synchronised, with an error of at most {state.most_error_s:.3g} s"
        words = said if state.synchronised else "the kernel reports that the clock is not synchronised"
        good = state.synchronised and state.most_error_s <= _FAR_S
        yield _clock("synchronisation", words, {"most_error_s": state.most_error_s}, warning=None if good else advice)
    by = step()
    advice = "find out what sets it in steps; a time service that slews (chrony's default) harms nothing"
    steady = abs(by) < _STEP_S
    words = "none while it was looked at" if steady else f"it was set by {by:+.3f} s while it was looked at"
    yield _clock("steps", words, {"step_s": round(by, 6)}, warning=None if steady else advice)
