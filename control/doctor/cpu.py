"""The container's CPUs: its quota, how often it was used up, and how many processors share it."""

from collections.abc import Iterator
from typing import Final

from control.configuration.cgroup import cpu_limit
from control.doctor import cgroup
from control.doctor.finding import Finding
from control.doctor.surroundings import Surroundings

__all__ = ["look"]

_OFTEN_PERCENT: Final = 5.0
_FEW_PERIODS: Final = 100
"""Fewer, ten seconds' worth, say nothing: a start alone uses up some."""


def look(around: Surroundings) -> Iterator[Finding]:
    """Quota, throttling, processors."""
    quota = cgroup.cpu_quota(around.cgroup, around.groups)
    yield _quota(quota)
    if quota is not None:
        yield _throttling(around)
    if around.config is not None:
        yield _processors(around, cpu_limit(around.cgroup, around.groups))


def _quota(quota: float | None) -> Finding:
    if quota is None:
        return Finding("cpu", "CPU quota of the container", "ok", "there is none")
    figures = {"cpus": quota}
    if quota >= 1:
        return Finding("cpu", "CPU quota of the container", "ok", f"is {quota:g} CPUs", figures=figures)
    pause = (1 - quota) * 100
    words = f"is {quota:g} CPUs: with one process busy, everything stands still for up to {pause:.0f} of every 100 ms"
    return Finding("cpu", "CPU quota of the container", "warning", words, "give it at least one CPU, or a request without a limit", figures)


def _throttling(around: Surroundings) -> Finding:
    subject, found = "CPU throttling", cgroup.throttling(around.cgroup, around.groups)
    if found is None:
        return Finding("cpu", subject, "unknown", "the kernel does not say")
    figures = {"periods": found.periods, "throttled": found.throttled, "throttled_percent": round(found.percent, 2), "throttled_s": found.seconds}
    words = (
        f"in {found.throttled:,} of {found.periods:,} periods ({found.percent:.1f} %), {found.seconds:.1f} s together, since the container was made"
    )
    if found.percent < _OFTEN_PERCENT or found.periods < _FEW_PERIODS:
        return Finding("cpu", subject, "ok", words, figures=figures)
    return Finding(
        "cpu", subject, "warning", words, "raise the CPU limit, or leave it out and keep the request: each such period is latency", figures
    )


def _processors(around: Surroundings, cpus: int) -> Finding:
    count = around.processors
    figures = {"processors": count, "cpus": cpus}
    if count <= cpus:
        return Finding("cpu", "processors", "ok", f"{count} on {cpus} CPUs", figures=figures)
    return Finding(
        "cpu", "processors", "warning", f"{count} share {cpus} CPUs", "set processors to 0, which takes as many as there are CPUs", figures
    )
