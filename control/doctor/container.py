"""What processes and the container may use: limits of processes, memory, CPUs. Their numbers come from ``framegate.control.configuration.cgroup``."""

import functools
import os
from collections.abc import Iterator
from typing import Final

from framegate.control.configuration import cgroup
from framegate.control.configuration.broker_rules import port_ranges
from framegate.control.configuration.capacity import memory_need, memory_warning
from framegate.control.configuration.document import entries
from framegate.control.configuration.units import format_size
from framegate.control.doctor.finding import Finding, judged, unknown
from framegate.control.doctor.surroundings import Surroundings, most_connections
from framegate.proxy.config.model import KIB, MIB

DESCRIPTORS: Final = 64  # of a process, without those of its connections: an idle processor has 13, control 34; tap, handlers and TLS add some
FEW_CONNECTIONS: Final = 1_000  # Room for fewer, where their number is not limited, is a warning
_CONTROL_TASKS: Final = 32  # an idle control process has 13 threads, most of them of gRPC
_TASKS: Final = 4  # of a processor or a handler process: 2, and those of its successor while it ends
_SPARE: Final = 16
_FULL_PERCENT: Final = 90
_OFTEN_PERCENT: Final = 5.0
_FEW_PERIODS: Final = 100  # Fewer periods, ten seconds, are not judged: a start alone uses up some
_RAISE: Final = "systemd: LimitNOFILE=; docker: --ulimit nofile=; Kubernetes: of the container engine on the node"
_limit, _memory, _cpu = (functools.partial(judged, area) for area in ("limits", "memory", "cpu"))


def look_at_limits(around: Surroundings) -> Iterator[Finding]:
    """The limits of the running framegate, or else of this process: descriptors, processes and threads, address space."""
    found = _limits(around)
    if not found:
        yield unknown("limits", "resource limits", f"{around.process}/limits cannot be read")
    else:
        yield _descriptors(around, found.get("Max open files"))
        yield _processes(around, found.get("Max processes"))
        yield _address_space(found.get("Max address space"))
    yield _tasks(around)


def _limits(around: Surroundings) -> dict[str, int | None]:
    """Hard limits by the kernel's names; None is unlimited. Control raises its soft limits up to them."""
    try:
        lines = (around.process / "limits").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    rows = ((line[:26].strip(), line[26:].split()) for line in lines[1:])
    return {name: int(words[1]) if words[1].isdecimal() else None for name, words in rows if len(words) > 1}


def _descriptors(around: Surroundings, limit: int | None) -> Finding:
    subject = f"open files (RLIMIT_NOFILE) of {around.process_name}"
    if limit is None:
        return _limit(subject, "are not limited")
    listeners = () if around.config is None else around.config.listeners
    others = DESCRIPTORS + sum(len(ports) for _, _, ports in port_ranges(entries((), listeners)))  # control listens for each broker
    room = max(0, limit - others) // 2
    figures = {"limit": limit, "connections": room}
    fits = f"are {limit:,} at most, enough for {room:,} connections in one processor"
    most = most_connections(around.config) if around.config is not None else None
    if most is None:
        if room < FEW_CONNECTIONS:
            advice = f"raise it to {2 * FEW_CONNECTIONS + others} or more ({_RAISE}), or set limits.connections"
            return _limit(subject, fits, figures, warning=advice)
        return _limit(subject, fits + ("" if around.config is None else "; limits.connections is not set"), figures)
    need = 2 * most + others
    figures["needed"] = need
    if need <= limit:
        return _limit(subject, f"{fits}; {most:,} may be open", figures)
    advice = f"raise it to {need} ({_RAISE}), or set limits.connections to {room}"
    return _limit(subject, f"are {limit:,} at most, and {most:,} connections may come to need {need:,}", figures, fault=advice)


def tasks_needed(around: Surroundings) -> int:
    """Processes and threads that all of a framegate may have."""
    config = around.config
    if config is None:
        return _CONTROL_TASKS + _TASKS
    handled = any(item.handler is not None for item in config.listeners)
    return _CONTROL_TASKS + _TASKS * (around.processors + (config.handlers.processes if handled else 0))


def _processes(around: Surroundings, limit: int | None) -> Finding:
    subject, need = f"processes and threads of the user (RLIMIT_NPROC) of {around.process_name}", tasks_needed(around)
    if limit is None:
        return _limit(subject, "are not limited")
    figures = {"limit": limit, "needed": need}
    if limit < need and os.stat(around.process).st_uid == 0:
        return _limit(subject, f"are {limit:,} at most, which does not hold for root", figures)
    advice = f"raise it to {need} or more (systemd: LimitNPROC=; docker: --ulimit nproc=)" if limit < need else None
    return _limit(subject, f"are {limit:,} at most, and framegate needs up to {need}", figures, fault=advice)


def _address_space(limit: int | None) -> Finding:
    if limit is None:
        return _limit("address space (RLIMIT_AS)", "is not limited")
    advice = "lift it (ulimit -v unlimited) and limit the container's memory instead: mappings count here that take no memory"
    return _limit("address space (RLIMIT_AS)", f"is limited to {limit:,} bytes", {"limit_bytes": limit}, warning=advice)


def _tasks(around: Surroundings) -> Finding:
    subject, found = "processes and threads of the container (pids cgroup)", cgroup.tasks(around.cgroup, around.groups)
    if found is None:
        return _limit(subject, "are not limited, as far as can be seen")
    (current, most), runs = found, around.pid is not None
    need = _SPARE if runs else tasks_needed(around)
    advice = f"raise the limit to {current + need} or more (kubelet: podPidsLimit; docker: --pids-limit; systemd: TasksMax=)"
    short = advice if most - current < need else None
    figures = {"current": current, "limit": most, "needed": need}
    words = f"{current:,} of {most:,} are there, and {need} more may be needed"
    return _limit(subject, words, figures, warning=short if runs else None, fault=None if runs else short)


def look_at_memory(around: Surroundings) -> Iterator[Finding]:
    """The limit, the use, and what the configuration may need; ``framegate check`` warns if that does not fit into the container."""
    limit, usage = cgroup.memory_limit(around.cgroup, around.groups), cgroup.memory_usage(around.cgroup, around.groups)
    subject = "memory limit of the container"
    if limit is None:
        advice = "set resources.limits.memory of the container (deploy/docs/limits.md says how much), so that the node's other pods are no risk to it"
        yield _memory(subject, "there is none", warning=advice if around.in_kubernetes else None)
    else:
        yield _memory(subject, f"is {_mib(limit)}", {"limit_bytes": limit})
        yield _usage(limit, usage)
    if around.config is not None:
        yield from _need(around, limit)
    killed = cgroup.killed_for_memory(around.cgroup, around.groups)
    if killed is None:
        yield unknown("memory", "processes killed for memory", "the kernel does not say")
    else:
        advice = "raise the memory limit, or lower memory_pool.size" if killed else ""
        yield _memory("processes killed for memory", f"{killed or 'none'} since the container was made", {"killed": killed}, warning=advice)


def _usage(limit: int, usage: int | None) -> Finding:
    if usage is None:
        return unknown("memory", "memory in use", "the kernel does not say")
    percent = 100 * usage / limit
    figures = {"usage_bytes": usage, "limit_bytes": limit, "usage_percent": round(percent, 1)}
    advice = "raise the limit, or lower it all: framegate pool set --size" if percent >= _FULL_PERCENT else None
    return _memory("memory in use", f"is {_mib(usage)}, {percent:.0f} % of the limit", figures, warning=advice)


def _need(around: Surroundings, limit: int | None) -> Iterator[Finding]:
    config = around.fitted
    need = memory_need(config, config.processors)
    parts = ", ".join(f"{name} {_mib(size)}" for name, size in need.parts)
    uncounted = f"; connections of {', '.join(need.uncounted)} are not counted" if need.uncounted else ""
    words, figures = f"up to {_mib(need.total)}: {parts}{uncounted}", {"need_bytes": need.total}
    total = _machine_bytes(around)
    if limit is None and 0 < total < need.total:
        advice = f"lower memory_pool.size or limits.connections, so that all fits into {_mib(total)}"
        figures["machine_bytes"] = total
        yield _memory("memory that may be needed", f"{words}; the machine has {_mib(total)}", figures, fault=advice)
    elif limit is None or memory_warning(config, config.processors, limit) is None:
        yield _memory("memory that may be needed", words, figures)


def _machine_bytes(around: Surroundings) -> int:
    """0 where it is not known."""
    rows = (line.split() for line in (around.text("proc/meminfo") or "").splitlines())
    return next((int(row[1]) * KIB for row in rows if len(row) > 1 and row[0] == "MemTotal:" and row[1].isdecimal()), 0)


def _mib(size: int) -> str:
    return format_size(-(-size // MIB) * MIB)


def look_at_cpus(around: Surroundings) -> Iterator[Finding]:
    """The quota, how often it was used up, and how many processors share it."""
    quota = cgroup.cpu_quota(around.cgroup, around.groups)
    subject = "CPU quota of the container"
    if quota is None:
        yield _cpu(subject, "there is none")
    else:
        small = quota < 1
        words = f": with one process busy, everything stands still for up to {(1 - quota) * 100:.0f} of every 100 ms" if small else ""
        advice = "give it at least one CPU, or a request without a limit" if small else None
        yield _cpu(subject, f"is {quota:g} CPUs{words}", {"cpus": quota}, warning=advice)
        yield _throttling(around)
    if around.config is not None:
        count, cpus = around.processors, cgroup.container(around.cgroup, around.groups).cpus
        shared = count > cpus
        advice = "set processors to 0, which takes as many as there are CPUs" if shared else None
        yield _cpu("processors", f"{count} {'share' if shared else 'on'} {cpus} CPUs", {"processors": count, "cpus": cpus}, warning=advice)


def _throttling(around: Surroundings) -> Finding:
    found = cgroup.throttling(around.cgroup, around.groups)
    if found is None:
        return unknown("cpu", "CPU throttling", "the kernel does not say")
    figures = {"periods": found.periods, "throttled": found.throttled, "throttled_percent": round(found.percent, 2), "throttled_s": found.seconds}
    share = f"in {found.throttled:,} of {found.periods:,} periods ({found.percent:.1f} %)"
    often = found.percent >= _OFTEN_PERCENT and found.periods >= _FEW_PERIODS
    advice = "raise the CPU limit, or leave it out and keep the request: each such period is latency" if often else None
    return _cpu("CPU throttling", f"{share}, {found.seconds:.1f} s together, since the container was made", figures, warning=advice)
