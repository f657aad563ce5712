"""What a configuration needs from its pod: ports, volumes, grace period. This machine, which is not the pod, is not examined."""

import dataclasses
import os
import pathlib
from collections.abc import Iterable
from typing import Final

from framegate.control.configuration.broker_rules import port_ranges
from framegate.control.configuration.capacity import fitted, memory_warning
from framegate.control.configuration.cgroup import Container
from framegate.control.configuration.document import ConfigurationError, entries
from framegate.control.configuration.load import judge
from framegate.control.configuration.reading import parse_document, read_document
from framegate.control.configuration.tls_files import named_paths
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.model import MIB, DrainConfig, ProxyConfig, TapConfig

CONFIGURATION_FOLDER: Final = "/etc/framegate"  # where the ConfigMap is mounted; relative paths of the configuration start here
_AUTHORITIES: Final = "/etc/ssl/certs/ca-certificates.crt"  # Public certificate authorities in the image
_TAP_BESIDE: Final = 16 * MIB  # in addition to the budget and open segments: the reserve (1 MiB), the ledger (about 1 MiB), offsets of consumers


class PodRequirementsError(Exception):
    """A valid configuration does not work in a pod; ``reasons`` has a sentence for each reason."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodRequirements:
    """What the pod must have."""

    # data_ports, inner_ports: of listeners that other pods reach, and of those that only this pod reaches
    data_ports: tuple[int, ...] = (9093,)
    inner_ports: tuple[int, ...] = ()
    # data_ranges, inner_ranges: first and last port of ``brokers.ports``, likewise
    data_ranges: tuple[tuple[int, int], ...] = ()
    inner_ranges: tuple[tuple[int, int], ...] = ()
    upstream_ports: tuple[int, ...] = (9190,)  # of this pod's application, to which framegate connects
    # metrics_port, health_port, http_port: of Prometheus, of probes, and of further HTTP probes; None: there is none
    metrics_port: int | None = 9464
    health_port: int | None = 9901
    http_port: int | None = None
    health_host: str = "127.0.0.1"  # where framegate's own container reaches ``health_port``
    admin_socket: str = "/run/framegate/admin.sock"  # its path
    # drain_s, delay_s: ``drain.timeout`` and ``drain.delay`` in whole seconds, rounded up
    drain_s: int = -(-DrainConfig().timeout_ms // 1000)
    delay_s: int = -(-DrainConfig().delay_ms // 1000)
    # tls_folder, tls_files: of the certificates (None: there are none), and what is read there, with the key that names each
    tls_folder: str | None = "/var/run/framegate/tls"
    tls_files: tuple[tuple[str, str], ...] = ()
    secret_folders: tuple[tuple[str, str], ...] = ()  # of other files that are read, with the key that names one; each must be in a volume
    # tap_folder, tap_bytes: None: nothing is recorded; the most bytes in it
    tap_folder: str | None = "/var/lib/framegate/tap"
    tap_bytes: int = 2048 * MIB
    ships: bool = False  # the tap's log is sent to an object store
    text: str | None = None  # of the configuration; None: it is in a ConfigMap already

    @property
    def ports(self) -> tuple[int, ...]:
        """All that are bound, or may be, on any address."""
        others = (self.metrics_port, self.health_port, self.http_port)
        brokers = (port for first, last in (*self.data_ranges, *self.inner_ranges) for port in range(first, last + 1))
        return (*self.data_ports, *self.inner_ports, *(port for port in others if port is not None), *brokers)

    @property
    def wait_s(self) -> int:
        """How long the application must serve after the pod's deletion, since clients in other pods use it through framegate; 0: none does."""
        return self.delay_s + self.drain_s if self.data_ports or self.data_ranges else 0

    @property
    def admin_folder(self) -> str:
        return os.path.dirname(self.admin_socket)


DEFAULT_REQUIREMENTS: Final = PodRequirements()  # of the configuration that the component expects (``deploy/kustomize/example/framegate.yaml``)


def read_configuration(source: pathlib.Path | str) -> tuple[ProxyConfig, str, list[str]]:
    """The model of a file or of a text, the text and its warnings, as in the pod: the files that it names need not be here. Raises
    ConfigurationError: with every fault.
    """
    folder = pathlib.Path(CONFIGURATION_FOLDER)
    document = parse_document(source, folder) if isinstance(source, str) else read_document(source)
    found = judge(dataclasses.replace(document, folder=folder), machine=False)
    config = found.config
    if found.faults or config is None:
        raise ConfigurationError(found.faults)
    warnings = [str(warning) for warning in found.warnings]
    return config, source if isinstance(source, str) else source.read_text(encoding="utf-8"), warnings


def fitted_requirements(source: pathlib.Path | str, cpu_m: int, memory: int) -> tuple[PodRequirements, list[str]]:
    """What the configuration of a file or of a text needs from its pod, and its warnings. ``cpu_m``, ``memory``: the container's limits, in
    thousandths of a CPU and in bytes. Raises ConfigurationError: with every fault; PodRequirementsError: as of ``requirements_of``.
    """
    config, text, warnings = read_configuration(source)
    chosen = fitted(config, Container(-(-cpu_m // 1000), memory, 2))
    warning = memory_warning(chosen, chosen.processors, memory)
    if warning is not None:
        warnings.append(f"memory_pool.size {warning}; --memory gives the container more")
    return requirements_of(config, text, chosen.processors), warnings


def requirements_of(config: ProxyConfig, text: str, processors: int) -> PodRequirements:
    """What a configuration needs from its pod; ``processors``: their number. Raises PodRequirementsError: it cannot work in a pod: no health
    listener, one that the kubelet cannot reach, ports that are not fixed, files where no volume can be.
    """
    reasons: list[str] = []
    data, inner = _listeners(config, reasons)
    ranges = [(address, ports) for _, address, ports in port_ranges(entries((), config.listeners))]
    health_port, http_port = _health(config, reasons)
    prometheus = config.telemetry.prometheus
    files = _files(config, reasons)
    tls_folder = _tls_folder(files)
    _written(config, reasons)
    needs = PodRequirements(
        data_ports=tuple(data),
        inner_ports=tuple(inner),
        data_ranges=tuple((ports[0], ports[-1]) for address, ports in ranges if not address.is_loopback),
        inner_ranges=tuple((ports[0], ports[-1]) for address, ports in ranges if address.is_loopback),
        upstream_ports=tuple(address.port for item in config.upstreams for address in map(parse_address, item.addresses) if address.is_loopback),
        metrics_port=None if prometheus is None else _port(prometheus.address, "telemetry.prometheus.address", reasons),
        health_port=health_port,
        http_port=http_port,
        health_host=_own_host(config),
        admin_socket=parse_address(config.admin.address).host,
        drain_s=-(-config.drain.timeout_ms // 1000),
        delay_s=-(-config.drain.delay_ms // 1000),
        tls_folder=tls_folder,
        tls_files=_first_keys((os.path.basename(path), key) for key, path in files if os.path.dirname(path) == tls_folder),
        secret_folders=_first_keys((os.path.dirname(path), key) for key, path in files if os.path.dirname(path) != tls_folder),
        tap_folder=None if config.tap is None else config.tap.directory,
        tap_bytes=0 if config.tap is None else _tap_bytes(config.tap, processors),
        ships=config.tap is not None and config.tap.ship is not None,
        text=text,
    )
    if reasons:
        raise PodRequirementsError(reasons)
    return needs


def _tap_bytes(tap: TapConfig, processors: int) -> int:
    """Each processor has an open segment, which no sweep removes, and may write one more between two sweeps."""
    return tap.budget + (processors + 1) * tap.segment_size + _TAP_BESIDE


def _listeners(config: ProxyConfig, reasons: list[str]) -> tuple[list[int], list[int]]:
    data: list[int] = []
    inner: list[int] = []
    for index, listener in enumerate(config.listeners):
        address = parse_address(listener.address, port_zero=True)
        key = f"listeners[{index}].address"
        if address.kind == "unix":
            reasons.append(f"{key} is a Unix socket, which would need a volume shared with the application; use 127.0.0.1:PORT in a pod")
        else:
            (inner if address.is_loopback else data).append(_port(listener.address, key, reasons) or 0)
    return data, inner


def _health(config: ProxyConfig, reasons: list[str]) -> tuple[int | None, int | None]:
    """The ports of probes, and of those that are over HTTP only."""
    if config.health is None:
        reasons.append('there is no health section, which the probes of the kubelet need: add health: {address: "0.0.0.0:9901"}')
        return None, None
    ports: dict[str, int | None] = {"address": None, "http_address": None}
    for name in ports:
        value = getattr(config.health, name)
        if value and parse_address(value, port_zero=True).is_loopback:
            reasons.append(f"health.{name} is {value}, which the kubelet cannot reach, because it connects to the pod's address; use 0.0.0.0")
        ports[name] = _port(value, f"health.{name}", reasons) if value else None
    return ports["address"], ports["http_address"]


def _own_host(config: ProxyConfig) -> str:
    """The address of ``health`` as framegate's own container reaches it."""
    address = None if config.health is None else parse_address(config.health.address, port_zero=True)
    return PodRequirements().health_host if address is None or address.wildcard else address.host


def _port(address: str, key: str, reasons: list[str]) -> int | None:
    port = parse_address(address, port_zero=True).port
    if port == 0:
        reasons.append(f"{key} is port 0, but Services and probes need a fixed port")
        return None
    return port


def _files(config: ProxyConfig, reasons: list[str]) -> list[tuple[str, str]]:
    """The files that must be in a volume, each with its key."""
    found: list[tuple[str, str]] = []
    for key, _, path in named_paths(config):
        if key.startswith(("tap.", "handlers.", "log.")) or path in ("", _AUTHORITIES):
            continue
        folder, instead = os.path.dirname(path), f"{DEFAULT_REQUIREMENTS.tls_folder}/{os.path.basename(path)}"
        if folder == CONFIGURATION_FOLDER:
            words = "where the ConfigMap with only the configuration is mounted: use another folder, for example"
            reasons.append(f"{key} is a file in {folder}, {words} {instead}")
        elif folder == os.path.dirname(_AUTHORITIES):
            words = f"which has the image's public certificate authorities ({os.path.basename(_AUTHORITIES)}) that a volume would hide: use another"
            reasons.append(f"{key} is a file in {folder}, {words} folder, for example {instead}")
        else:
            found.append((key, path))
    return found


def _written(config: ProxyConfig, reasons: list[str]) -> None:
    """Sockets and files that are made where a pod has no volume for them."""
    admin = os.path.dirname(parse_address(config.admin.address).host)
    made = {f"admin.{role}.address": parse_address(item.address).host for role, item in config.admin.sockets.items() if role != "admin"}
    folders = [admin] if config.tap is None else [admin, config.tap.directory]
    for key, path, allowed in (*((key, path, [admin]) for key, path in made.items()), ("log.audit.file", config.log.audit.file, folders)):
        if path is not None and os.path.dirname(path) not in allowed:
            reasons.append(f"{key} is in {os.path.dirname(path)}, which a pod cannot write: use {' or '.join(allowed)}")


def _tls_folder(files: list[tuple[str, str]]) -> str | None:
    """The folder of listeners' certificates, else of upstreams', else of other files of TLS."""
    of_certificates = [path for key, path in files if key.endswith(".certificate")]
    chosen = of_certificates or [path for key, path in files if ".tls." in key]
    return os.path.dirname(chosen[0]) if chosen else None


def _first_keys(named: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Each name once, with the key that has it first."""
    found: dict[str, str] = {}
    for name, key in named:
        found.setdefault(name, key)
    return tuple(found.items())
