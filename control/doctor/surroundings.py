"""Where framegate is to be looked at: its configuration, and the folder in which the system's files lie, ``/`` but for tests."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from framegate.control.configuration.capacity import fitted
from framegate.control.configuration.cgroup import container
from framegate.proxy.config.model import ProxyConfig

__all__ = ["Surroundings", "most_connections"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every area gets.

    Attributes:
        config: without a fault; None when there is none, or it is faulty.
        timeout_s: of each probe.
        root: of the system's files.
        environment: variables.
        pid: of the framegate that runs here, when one does and its process can be seen.
        now: seconds since 1970.
    """

    config: ProxyConfig | None = None
    timeout_s: float = 5.0
    root: Path = Path("/")
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pid: int | None = None
    now: Callable[[], float] = time.time

    @property
    def in_kubernetes(self) -> bool:
        """Whether this is a container of a pod."""
        return "KUBERNETES_SERVICE_HOST" in self.environment or (self.root / "var/run/secrets/kubernetes.io/serviceaccount").is_dir()

    @property
    def in_container(self) -> bool:
        """Whether this is a container at all, as far as its engine leaves a sign of itself."""
        return self.in_kubernetes or (self.root / ".dockerenv").exists() or (self.root / "run/.containerenv").exists()

    @property
    def cgroup(self) -> Path:
        """Where control groups are mounted."""
        return self.root / "sys/fs/cgroup"

    @property
    def groups(self) -> Path:
        """Which of them the process is in."""
        return self.process / "cgroup"

    @property
    def process(self) -> Path:
        """The running framegate's folder in /proc, else our own: both are started alike in a container."""
        return self.root / "proc" / ("self" if self.pid is None else str(self.pid))

    @property
    def whose(self) -> str:
        """The same in words."""
        return "this process" if self.pid is None else f"framegate, process {self.pid}"

    @property
    def fitted(self) -> ProxyConfig:
        """The configuration with the processors, and the memory pool, that 0 stands for here."""
        assert self.config is not None, "without a configuration there are none"
        return fitted(self.config, container(self.cgroup, self.groups))

    @property
    def processors(self) -> int:
        """As many as would be started."""
        return self.fitted.processors

    def text(self, path: str) -> str | None:
        """What is in one of the system's files, without white space around it; None when it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Its first word as a number; None when it is none."""
        words = (self.text(path) or "").split()
        return int(words[0]) if words and words[0].lstrip("-").isdecimal() else None


def most_connections(config: ProxyConfig) -> int | None:
    """How many connections may be open at once; None: as many as come."""
    shared = [item for item in config.listeners if item.name != config.limits.protected_listener]
    alone = [item for item in config.listeners if item.name == config.limits.protected_listener]
    sums = [_sum([item.limits.connections for item in shared]), config.limits.connections or None]
    known = [item for item in sums if item is not None]
    beside = _sum([item.limits.connections for item in alone])
    return None if not known or beside is None else min(known) + beside


def _sum(limits: list[int]) -> int | None:
    """Of limits of which 0 is none."""
    return None if 0 in limits else sum(limits)
