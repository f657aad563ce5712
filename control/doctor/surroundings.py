"""What the doctor examines: the configuration, and the root of the system's files, which is ``/`` but in tests."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from framegate.control.configuration.capacity import fitted
from framegate.control.configuration.cgroup import container
from framegate.proxy.config.model import ProxyConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What every area gets."""

    config: ProxyConfig | None = None  # without a fault; None when there is none, or it is faulty
    timeout_s: float = 5.0  # of each probe, from its begin
    root: Path = Path("/")  # of the system's files
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)  # variables
    pid: int | None = None  # of the framegate that runs here, if its process can be seen
    now: Callable[[], float] = time.time  # seconds since 1970

    @property
    def in_kubernetes(self) -> bool:
        return "KUBERNETES_SERVICE_HOST" in self.environment or (self.root / "var/run/secrets/kubernetes.io/serviceaccount").is_dir()

    @property
    def in_container(self) -> bool:
        """Whether this is a container, by the files of its engine."""
        return self.in_kubernetes or (self.root / ".dockerenv").exists() or (self.root / "run/.containerenv").exists()

    @property
    def cgroup(self) -> Path:
        """Where control groups are mounted."""
        return self.root / "sys/fs/cgroup"

    @property
    def groups(self) -> Path:
        """The file that says which of them the process is in."""
        return self.process / "cgroup"

    @property
    def process(self) -> Path:
        """The running framegate's folder in /proc, else that of this process: in a container both start with the same limits."""
        return self.root / "proc" / ("self" if self.pid is None else str(self.pid))

    @property
    def process_name(self) -> str:
        """The same in words."""
        return "this process" if self.pid is None else f"framegate, process {self.pid}"

    @property
    def fitted(self) -> ProxyConfig:
        """The configuration with the processors and the memory pool that 0 stands for here."""
        assert self.config is not None, "without a configuration there are none"
        return fitted(self.config, container(self.cgroup, self.groups))

    @property
    def processors(self) -> int:
        """As many as would be started."""
        return self.fitted.processors

    def text(self, path: str) -> str | None:
        """The contents of one of the system's files, without surrounding white space; None when it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The first word of a file as a number; None when it is none."""
        words = (self.text(path) or "").split()
        return int(words[0]) if words and words[0].lstrip("-").isdecimal() else None


def most_connections(config: ProxyConfig) -> int | None:
    """How many connections may be open at once; None: their number is not limited."""
    shared = [item for item in config.listeners if item.name != config.limits.protected_listener]
    alone = [item for item in config.listeners if item.name == config.limits.protected_listener]
    sums = [_sum([item.limits.connections for item in shared]), config.limits.connections or None]
    known = [item for item in sums if item is not None]
    beside = _sum([item.limits.connections for item in alone])
    return None if not known or beside is None else min(known) + beside


def _sum(limits: list[int]) -> int | None:
    return None if 0 in limits else sum(limits)
