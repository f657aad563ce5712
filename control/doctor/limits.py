"""What one user's processes may have: descriptors, processes and threads, address space."""

import os
from collections.abc import Iterator
from typing import Final

from control.doctor import cgroup
from control.doctor.finding import Finding
from control.doctor.surroundings import Surroundings, most_connections

__all__ = ["DESCRIPTORS", "FEW_CONNECTIONS", "look", "tasks_needed"]

DESCRIPTORS: Final = 64
"""Of a process, beside those of its connections: a processor that is idle has 13, control 34; tap, handlers and TLS add some."""
FEW_CONNECTIONS: Final = 1_000
"""Less than that, where their number is not limited, is told."""
_CONTROL_TASKS: Final = 32
"""13 threads are there when it is idle, most of them of gRPC."""
_TASKS: Final = 4
"""Of a processor or a handler process: 2, and one that takes its place while it ends."""
_SPARE: Final = 16
Limits = dict[str, int | None]


def look(around: Surroundings) -> Iterator[Finding]:
    """The limits of the running framegate, or else ours."""
    found = _limits(around)
    if not found:
        yield Finding("limits", "resource limits", "unknown", f"{around.process}/limits cannot be read")
    else:
        yield _descriptors(around, found.get("Max open files"))
        yield _processes(around, found.get("Max processes"))
        yield _address_space(found.get("Max address space"))
    yield _tasks(around)


def _limits(around: Surroundings) -> Limits:
    """Hard limits by the kernel's names; None is unlimited. Control raises its own soft ones up to them."""
    try:
        lines = (around.process / "limits").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    rows = ((line[:26].strip(), line[26:].split()) for line in lines[1:])
    return {name: int(words[1]) if words[1].isdecimal() else None for name, words in rows if len(words) > 1}


def _descriptors(around: Surroundings, limit: int | None) -> Finding:
    subject = f"open files (RLIMIT_NOFILE) of {around.whose}"
    if limit is None:
        return Finding("limits", subject, "ok", "are not limited")
    room = max(0, limit - DESCRIPTORS) // 2
    figures = {"limit": limit, "connections": room}
    fits = f"are {limit:,} at most, enough for {room:,} connections in one processor"
    most = most_connections(around.config) if around.config is not None else None
    if most is None:
        if room >= FEW_CONNECTIONS:
            besides = "" if around.config is None else "; limits.connections is not set"
            return Finding("limits", subject, "ok", fits + besides, figures=figures)
        return Finding(
            "limits",
            subject,
            "warning",
            fits,
            f"raise it to {2 * FEW_CONNECTIONS + DESCRIPTORS} or more ({_RAISE}), or set limits.connections",
            figures,
        )
    need = 2 * most + DESCRIPTORS
    figures = {**figures, "needed": need}
    if need <= limit:
        return Finding("limits", subject, "ok", f"{fits}; {most:,} may be open", figures=figures)
    advice = f"raise it to {need} ({_RAISE}), or set limits.connections to {room}"
    return Finding("limits", subject, "fault", f"are {limit:,} at most, and {most:,} connections may come to need {need:,}", advice, figures)


_RAISE: Final = "systemd: LimitNOFILE=; docker: --ulimit nofile=; Kubernetes: of the container engine on the node"


def tasks_needed(around: Surroundings) -> int:
    """Processes and threads that all of a framegate may have."""
    config = around.config
    if config is None:
        return _CONTROL_TASKS + _TASKS
    handled = any(item.handler is not None for item in config.listeners)
    return _CONTROL_TASKS + _TASKS * (around.processors + (config.handlers.processes if handled else 0))


def _processes(around: Surroundings, limit: int | None) -> Finding:
    subject, need = f"processes and threads of the user (RLIMIT_NPROC) of {around.whose}", tasks_needed(around)
    if limit is None:
        return Finding("limits", subject, "ok", "are not limited")
    figures = {"limit": limit, "needed": need}
    if limit >= need:
        return Finding("limits", subject, "ok", f"are {limit:,} at most, and framegate needs up to {need}", figures=figures)
    if os.stat(around.process).st_uid == 0:
        return Finding("limits", subject, "ok", f"are {limit:,} at most, which does not hold for root", figures=figures)
    advice = f"raise it to {need} or more (systemd: LimitNPROC=; docker: --ulimit nproc=)"
    return Finding("limits", subject, "fault", f"are {limit:,} at most, and framegate needs up to {need}", advice, figures)


def _address_space(limit: int | None) -> Finding:
    if limit is None:
        return Finding("limits", "address space (RLIMIT_AS)", "ok", "is not limited")
    advice = "lift it (ulimit -v unlimited) and limit the container's memory instead: mappings count here that take no memory"
    return Finding("limits", "address space (RLIMIT_AS)", "warning", f"is limited to {limit:,} bytes", advice, {"limit_bytes": limit})


def _tasks(around: Surroundings) -> Finding:
    subject, found = "processes and threads of the container (pids cgroup)", cgroup.tasks(around.cgroup, around.groups)
    if found is None:
        return Finding("limits", subject, "ok", "are not limited, as far as can be seen")
    (current, most), runs = found, around.pid is not None
    need = _SPARE if runs else tasks_needed(around)
    figures = {"current": current, "limit": most, "needed": need}
    words = f"{current:,} of {most:,} are there, and {need} more may be needed"
    if most - current >= need:
        return Finding("limits", subject, "ok", words, figures=figures)
    advice = f"raise the limit to {current + need} or more (kubelet: podPidsLimit; docker: --pids-limit; systemd: TasksMax=)"
    return Finding("limits", subject, "warning" if runs else "fault", words, advice, figures)
