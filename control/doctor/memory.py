"""The container's memory: what there is, what is used, what the configuration may come to need, who was killed for it."""

from collections.abc import Iterator
from typing import Final

from control.configuration.capacity import memory_need, memory_warning
from control.configuration.cgroup import memory_limit, memory_usage
from control.configuration.units import format_size
from control.doctor import cgroup
from control.doctor.finding import Finding
from control.doctor.surroundings import Surroundings
from proxy.config.model import KIB, MIB

__all__ = ["look"]

_FULL_PERCENT: Final = 90


def look(around: Surroundings) -> Iterator[Finding]:
    """Beside the warning of ``framegate check`` that it does not fit."""
    limit, usage = memory_limit(around.cgroup, around.groups), memory_usage(around.cgroup, around.groups)
    yield _limit(around, limit)
    if limit is not None:
        yield _usage(limit, usage)
    if around.config is not None:
        yield from _need(around, limit)
    yield _killed(around)


def _limit(around: Surroundings, limit: int | None) -> Finding:
    subject = "memory limit of the container"
    if limit is not None:
        return Finding("memory", subject, "ok", f"is {_mib(limit)}", figures={"limit_bytes": limit})
    if around.in_kubernetes:
        advice = "set resources.limits.memory of the container (deploy/sizing.md says how much), so that the node's other pods are no risk to it"
        return Finding("memory", subject, "warning", "there is none", advice)
    return Finding("memory", subject, "ok", "there is none")


def _usage(limit: int, usage: int | None) -> Finding:
    if usage is None:
        return Finding("memory", "memory in use", "unknown", "the kernel does not say")
    percent = 100 * usage / limit
    figures = {"usage_bytes": usage, "limit_bytes": limit, "usage_percent": round(percent, 1)}
    words = f"is {_mib(usage)}, {percent:.0f} % of the limit"
    if percent < _FULL_PERCENT:
        return Finding("memory", "memory in use", "ok", words, figures=figures)
    return Finding("memory", "memory in use", "warning", words, "raise the limit, or lower it all: framegate pool set --size", figures)


def _need(around: Surroundings, limit: int | None) -> Iterator[Finding]:
    config = around.fitted
    need = memory_need(config, config.processors)
    parts = ", ".join(f"{name} {_mib(size)}" for name, size in need.parts)
    uncounted = f"; connections of {', '.join(need.uncounted)} are not counted" if need.uncounted else ""
    words, figures = f"up to {_mib(need.total)}: {parts}{uncounted}", {"need_bytes": need.total}
    total = (_meminfo(around).get("MemTotal") or 0) * KIB
    if limit is None and 0 < total < need.total:
        advice = f"lower memory_pool.size or limits.connections, so that all fits into {_mib(total)}"
        yield Finding(
            "memory", "memory that may be needed", "fault", f"{words}; the machine has {_mib(total)}", advice, {**figures, "machine_bytes": total}
        )
    elif limit is None or memory_warning(config, config.processors, limit) is None:
        yield Finding("memory", "memory that may be needed", "ok", words, figures=figures)


def _killed(around: Surroundings) -> Finding:
    killed = cgroup.killed_for_memory(around.cgroup, around.groups)
    subject = "processes killed for memory"
    if killed is None:
        return Finding("memory", subject, "unknown", "the kernel does not say")
    if killed == 0:
        return Finding("memory", subject, "ok", "none since the container was made", figures={"killed": 0})
    return Finding(
        "memory",
        subject,
        "warning",
        f"{killed} since the container was made",
        "raise the memory limit, or lower memory_pool.size",
        {"killed": killed},
    )


def _meminfo(around: Surroundings) -> dict[str, int]:
    """In KiB."""
    rows = (line.replace(":", " ").split() for line in (around.text("proc/meminfo") or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _mib(size: int) -> str:
    return format_size(-(-size // MIB) * MIB)
