"""Settings of the kernel that decide about connections, buffers and memory. Those that the configuration runs into ``framegate check`` tells."""

from collections.abc import Iterator
from typing import Final

from control.configuration.units import format_size
from control.doctor.finding import Figure, Finding
from control.doctor.surroundings import Surroundings, most_connections
from proxy.config.address import parse_address
from proxy.config.model import MIB

__all__ = ["look"]

_NET: Final = "proc/sys/net"
_SMALL_WINDOW: Final = MIB
_NEARLY_PERCENT: Final = 80
_STRICT_OVERCOMMIT: Final = 2


def look(around: Surroundings) -> Iterator[Finding]:
    """One after the other."""
    yield _backlog(around)
    for name in ("tcp_rmem", "tcp_wmem"):
        yield _window(around, name)
    for name in ("rmem_max", "wmem_max"):
        yield _shown(around, f"net.core.{name}", f"{_NET}/core/{name}", "bytes at most, where socket.receive_buffer or send_buffer is set")
    yield _ports(around)
    yield from _keepalive(around)
    yield _overcommit(around)
    yield _huge_pages(around)
    yield _tracking(around)


def _shown(around: Surroundings, name: str, path: str, unit: str) -> Finding:
    value = around.number(path)
    if value is None:
        return Finding("kernel", name, "unknown", "cannot be seen here")
    return Finding("kernel", name, "ok", f"{value:,} {unit}", figures={"value": value})


def _backlog(around: Surroundings) -> Finding:
    """What is cut ``check`` has told."""
    return _shown(around, "net.core.somaxconn", f"{_NET}/core/somaxconn", "connections may wait to be accepted")


def _window(around: Surroundings, name: str) -> Finding:
    words = (around.text(f"{_NET}/ipv4/{name}") or "").split()
    if len(words) != 3 or not words[2].isdecimal():
        return Finding("kernel", f"net.ipv4.{name}", "unknown", "cannot be seen here")
    most, figures = int(words[2]), {"most_bytes": int(words[2])}
    if most >= _SMALL_WINDOW:
        return Finding("kernel", f"net.ipv4.{name}", "ok", f"buffers grow up to {format_size(most)}", figures=figures)
    advice = f'sysctl -w net.ipv4.{name}="{words[0]} {words[1]} 6291456": over long ways a connection is no faster than its buffer allows'
    return Finding("kernel", f"net.ipv4.{name}", "warning", f"buffers grow up to {format_size(most)} only", advice, figures)


def _ports(around: Surroundings) -> Finding:
    subject = "net.ipv4.ip_local_port_range"
    words = (around.text(f"{_NET}/ipv4/ip_local_port_range") or "").split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return Finding("kernel", subject, "unknown", "cannot be seen here")
    count = int(words[1]) - int(words[0]) + 1
    figures: dict[str, Figure] = {"ports": count}
    fits = f"{count:,} ports: as many connections to one address of an upstream"
    most = None if around.config is None else most_connections(around.config)
    if around.config is None or most is None:
        return Finding("kernel", subject, "ok", fits, figures=figures)
    tight = [item.name for item in around.config.upstreams if most > count * sum(parse_address(text).kind != "unix" for text in item.endpoints) > 0]
    if not tight:
        return Finding("kernel", subject, "ok", fits, figures=figures)
    advice = 'sysctl -w net.ipv4.ip_local_port_range="1024 65535" (a pod: securityContext.sysctls), more endpoints, or lower limits.connections'
    words_ = f"{fits}, and {most:,} connections may be open to {', '.join(tight)}"
    return Finding("kernel", subject, "warning", words_, advice, {**figures, "connections": most})


def _keepalive(around: Surroundings) -> Iterator[Finding]:
    """The kernel's times do not matter: framegate sets its own, or none."""
    listeners = () if around.config is None else around.config.listeners
    for index, item in enumerate(listeners):
        if item.timeouts.idle_ms == 0 and item.socket.keep_alive is None:
            advice = "set socket.keep_alive: {}, or timeouts.idle: a client that is gone without a word keeps its connection for ever"
            yield Finding("kernel", f"listeners[{index}] ({item.name}), keep-alive", "warning", "is off, and idle connections never end", advice)
    yield _shown(around, "net.ipv4.tcp_keepalive_time", f"{_NET}/ipv4/tcp_keepalive_time", "s; framegate sets its own where socket.keep_alive is set")


def _overcommit(around: Surroundings) -> Finding:
    value = around.number("proc/sys/vm/overcommit_memory")
    if value is None:
        return Finding("kernel", "vm.overcommit_memory", "unknown", "cannot be seen here")
    if value != _STRICT_OVERCOMMIT:
        return Finding("kernel", "vm.overcommit_memory", "ok", f"is {value}", figures={"value": value})
    advice = "sysctl -w vm.overcommit_memory=0: mappings that are never filled are refused, and a processor may fail to start beside a full pool"
    return Finding(
        "kernel", "vm.overcommit_memory", "warning", "is 2: the kernel counts what is asked for, not what is used", advice, {"value": value}
    )


def _huge_pages(around: Surroundings) -> Finding:
    subject, text = "transparent huge pages", around.text("sys/kernel/mm/transparent_hugepage/enabled")
    if text is None:
        return Finding("kernel", subject, "unknown", "cannot be seen here")
    chosen = next((word.strip("[]") for word in text.split() if word.startswith("[")), text)
    if chosen != "always":
        return Finding("kernel", subject, "ok", f"are {chosen}", figures={"value": chosen})
    advice = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled on the node: memory that was given back in small pieces may stay in use"
    return Finding("kernel", subject, "warning", "are always on", advice, {"value": chosen})


def _tracking(around: Surroundings) -> Finding:
    subject = "net.netfilter.nf_conntrack_max"
    most, count = (around.number(f"{_NET}/netfilter/{name}") for name in ("nf_conntrack_max", "nf_conntrack_count"))
    if most is None or count is None or most <= 0:
        return Finding("kernel", subject, "unknown", "cannot be seen here: it is the node's (or connections are not tracked)")
    percent = 100 * count / most
    words, figures = f"{count:,} of {most:,} connections are tracked ({percent:.0f} %)", {"count": count, "limit": most}
    if percent < _NEARLY_PERCENT:
        return Finding("kernel", subject, "ok", words, figures=figures)
    advice = f"sysctl -w net.netfilter.nf_conntrack_max={2 * most} on the node: beyond it new connections are lost without a word"
    return Finding("kernel", subject, "warning", words, advice, figures)
