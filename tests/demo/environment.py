"""What the dashboards are shown over: two framegates, clients of three kinds, a collector for what they export, and Prometheus.

The programs of others are found on PATH or in the cache that ``make dashboards`` fills.
"""

import contextlib
import datetime
import functools
import json
import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, socket
from typing import Any, Final, NamedTuple

from framegate.control.demo import certificates
from framegate.control.demo.processes import Child, ChildError
from framegate.control.demo.stage import LISTENER, Stage
from framegate.control.demo.steering import Steering
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from tests.demo.clients import call_kafka, repeating, visit
from tests.demo.panels import Prometheus
from tests.fakes.small_disk import tiny_disk

__all__ = ["EXPORT_S", "JOB", "MIB", "PARTNERS", "SCRAPE_JOB", "Environment", "Tools", "environment", "find"]

EXPORT_S: Final = 1
"""Seconds between exports, and between scrapes."""
JOB: Final = "framegate"
"""The label ``job`` of series that came over OTLP."""
SCRAPE_JOB: Final = "scrape"
"""The label ``job`` of series that Prometheus scraped."""
PARTNERS: Final = "partners"
KAFKA: Final = "kafka"
TAP_MIB: Final = 192
MIB: Final = 1 << 20
_USER: Final = "orders"
_START_S: Final = 30.0
_TALK_S: Final = 10.0
_VALIDITY: Final = datetime.timedelta(days=90)
_ADVICE: Final = "make dashboards gets it"


class Tools(NamedTuple):
    """The programs of others that were found; None: not found.

    Attributes:
        collector: OpenTelemetry's, with the components of ``deploy/collector``.
        prometheus: the server.
        browser: Chromium.
        page: the folder with ``page.js`` and ``page.css``, which draw a dashboard.
    """

    collector: str | None
    prometheus: str | None
    browser: str | None
    page: Path | None

    def missing(self) -> list[str]:
        """Sentences about what the run cannot do without."""
        return [f"Prometheus (prometheus) is neither on PATH nor in the cache: {_ADVICE}"] if self.prometheus is None else []

    def no_collector(self) -> str | None:
        """Why nothing is exported over OTLP; None when it can be."""
        return f"no collector (otelcol) is on PATH or in the cache: {_ADVICE}" if self.collector is None else None

    def no_pictures(self) -> str | None:
        """Why no pictures are drawn; None when they can be."""
        if self.browser is None:
            return "Chromium is not on PATH (on Debian: apt-get install chromium)"
        return f"the page that draws them is not in the cache: {_ADVICE}" if self.page is None else None


def find() -> Tools:
    """Look for all programs; of several versions in the cache the newest is taken."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = sorted((base / "framegate").glob("telemetry-*"), reverse=True)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *(str(folder / "bin") for folder in kept)])

    def program(*names: str) -> str | None:
        return next(filter(None, (shutil.which(name, path=path) for name in names)), None)

    return Tools(
        collector=program("otelcol", "otelcol-contrib"),
        prometheus=program("prometheus"),
        browser=program("chromium", "chromium-browser", "google-chrome", "chrome"),
        page=next((folder / "page" for folder in kept if (folder / "page" / "page.js").exists()), None),
    )


class Environment:
    """What scenarios use.

    Attributes:
        steering: the control API of the framegate that the dashboards show.
        metrics: ``host:port`` of the metrics, by node, of both framegates.
        prometheus: has the series of both.
        tap_disk: the small disk of the tap; None: it could not be mounted.
    """

    def __init__(
        self, stage: Stage, prometheus: Prometheus, steering: Steering, ports: dict[str, int], metrics: dict[str, str], tap_disk: Path | None
    ) -> None:
        self.prometheus = prometheus
        self.steering = steering
        self.metrics = metrics
        self.tap_disk = tap_disk
        self._ours = stage.certificates
        self._stranger = certificates.create(stage.workspace.certificates / "stranger")
        self._ports = ports

    def connect(self, listener: str = LISTENER, *, stranger: bool = False) -> ssl.SSLSocket:
        """A client of a TLS listener after its handshake. A stranger's certificate comes from an authority that framegate does not know.

        Raises:
            OSError: the connection was refused.
        """
        made = self._stranger if stranger else self._ours
        context = ssl.create_default_context(cafile=self._ours.ca)
        context.load_cert_chain(made.client, made.client_key)
        plain = socket(AF_INET, SOCK_STREAM)
        plain.settimeout(_TALK_S)
        try:
            plain.connect(("127.0.0.1", self._ports[listener]))
            return context.wrap_socket(plain, server_hostname="localhost")
        except BaseException:
            plain.close()
            raise


@contextlib.contextmanager
def environment(stage: Stage, tools: Tools, collector_yaml: Path, say: Callable[[str], None]) -> Iterator[Environment]:
    """Start everything, and wait until all of it serves.

    Args:
        stage: ends the processes.
        tools: with Prometheus; without a collector there are only scrapes.
        collector_yaml: the collector's configuration, used as it is but for its addresses.
        say: called with what is not possible here.

    Raises:
        ChildError: a process did not start.
    """
    assert tools.prometheus is not None, "the caller has asked Tools.missing"
    place = stage.workspace
    stage.certificates = certificates.create(place.certificates, _VALIDITY)
    otlp, exported, health, asked = _free_ports(4)
    with contextlib.ExitStack() as undo:
        mounted = undo.enter_context(tiny_disk(place.tap, TAP_MIB))
        if not mounted:
            say("full tap: not run: a small disk cannot be mounted here (needs root)")
        if tools.collector is None:
            otlp = exported = 0
        else:
            overlay = _write(place.root / "collector.yaml", _collector(otlp, exported, health))
            collector = stage.start("collector", [tools.collector, "--config", str(collector_yaml), "--config", str(overlay)])
            _until(collector, lambda: _answers(health))
        upstream = stage.start_framegate("upstream", place.upstream_configuration, _upstream(stage, otlp))
        behind = upstream.wait_for_event("serving", _START_S)
        stage.proxy = stage.start_framegate("proxy", place.configuration, _proxy(stage, otlp, _ports_of(behind)))
        served = stage.proxy.wait_for_event("serving", _START_S)
        metrics, ports = {"upstream": behind["prometheus"], "demo": served["prometheus"]}, _ports_of(served)
        prometheus = _start_prometheus(stage, tools.prometheus, asked, exported, list(metrics.values()))
        options = {"port": ports[LISTENER], "rate": 300, "connections": 8, "ca": str(stage.certificates.ca)}
        stage.start_module("framegate.control.demo.generator", json.dumps(options))
        steering = undo.enter_context(Steering(place.admin, LISTENER))
        made = Environment(stage, prometheus, steering, ports, metrics, place.tap if mounted else None)
        undo.enter_context(repeating(functools.partial(call_kafka, ("127.0.0.1", ports[KAFKA])), 3))
        undo.enter_context(repeating(lambda _over: visit(made.connect(PARTNERS)), pause_s=0.5))
        yield made


def _ports_of(serving: dict[str, Any]) -> dict[str, int]:
    return {name: int(address.rpartition(":")[2]) for name, address in serving["listeners"].items()}


def _start_prometheus(stage: Stage, program: str, port: int, exported: int, targets: list[str]) -> Prometheus:
    jobs: list[dict[str, Any]] = [{"job_name": SCRAPE_JOB, "static_configs": [{"targets": targets}]}]
    if exported:
        jobs.append({"job_name": "collector", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{exported}"]}]})
    folder, every = stage.workspace.root / "prometheus", f"{EXPORT_S}s"
    folder.mkdir(exist_ok=True)
    file = _write(folder / "prometheus.yaml", {"global": {"scrape_interval": every, "scrape_timeout": every}, "scrape_configs": jobs})
    options = [f"--storage.tsdb.path={folder / f'data-{os.getpid()}'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    child = stage.start("prometheus", [program, f"--config.file={file}", *options])
    prometheus = Prometheus(f"127.0.0.1:{port}")
    _until(child, prometheus.ready)
    return prometheus


def _collector(otlp: int, exported: int, health: int) -> dict[str, Any]:
    """What differs from the collector's configuration: addresses, and a batch is sent after 100 ms instead of 5 s."""
    return {
        "extensions": {"health_check": {"endpoint": f"127.0.0.1:{health}"}},
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{otlp}"}}}},
        "processors": {"batch": {"timeout": "100ms"}},
        "exporters": {"prometheus": {"endpoint": f"127.0.0.1:{exported}"}},
        "service": {"telemetry": {"metrics": {"level": "none"}}},
    }


def _upstream(stage: Stage, otlp: int) -> dict[str, Any]:
    """The configuration of the framegate that answers: a handler for frames, and one for Kafka's requests, which needs a login."""
    place = stage.workspace
    password, users, text = place.certificates / "password", place.certificates / "users", os.urandom(12).hex()
    with os.fdopen(os.open(password, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as secret:
        secret.write(text + "\n")
    with changing(users) as file:
        file.add(_USER, new_credentials(text, iterations=4096))
    handled = {"max_receive_size": "8MiB", "address": "127.0.0.1:0"}
    sasl = {"mechanisms": ["SCRAM-SHA-256"], "users": str(users)}
    document = stage.upstream_configuration()
    document["handlers"]["path"] = [str(Path(__file__).parent)]
    document["listeners"].append({"name": KAFKA, "handler": "clients:KafkaUpstream", "protocol": "kafka", "sasl": sasl, **handled})
    return {**document, "telemetry": _telemetry(otlp)}


def _proxy(stage: Stage, otlp: int, behind: dict[str, int]) -> dict[str, Any]:
    """The configuration of the framegate that the dashboards show: TLS, TLS with client certificates, and Kafka with a login upstream; all tapped."""
    place, made = stage.workspace, stage.certificates
    tls = {"certificate": str(made.server), "key": str(made.server_key)}
    mutual = {**tls, "client_auth": "required", "client_ca": str(made.ca)}
    login = {"mechanism": "SCRAM-SHA-256", "user": _USER, "password_file": str(place.certificates / "password")}
    address = {"address": "127.0.0.1:0"}
    return {
        **stage.configuration("", {}, {}),
        "listeners": [
            {"name": LISTENER, **address, "max_receive_size": "4MiB", "tls": tls, "upstream": "framed"},
            {"name": PARTNERS, **address, "max_receive_size": "512KiB", "tls": mutual, "upstream": "framed"},
            {"name": KAFKA, **address, "max_receive_size": "512KiB", "protocol": "kafka", "upstream": "brokers"},
        ],
        "upstreams": [
            {"name": "framed", "endpoints": [f"127.0.0.1:{behind[LISTENER]}"]},
            {"name": "brokers", "endpoints": [f"127.0.0.1:{behind[KAFKA]}"], "sasl": login},
        ],
        "tap": {
            "directory": str(place.tap),
            "budget": TAP_MIB * MIB * 2 // 3,
            "segment_size": "8MiB",
            "rules": [{"name": "all", "on_full": "drop"}],
        },
        "telemetry": _telemetry(otlp),
        "drain": {"timeout": "5s"},
    }


def _telemetry(otlp: int) -> dict[str, Any]:
    exported = {"otlp": {"endpoint": f"http://127.0.0.1:{otlp}", "interval": f"{EXPORT_S}s"}} if otlp else {}
    return {**exported, "prometheus": {"address": "127.0.0.1:0"}}


def _write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document, indent=2) + "\n")  # JSON is YAML
    return path


def _free_ports(count: int) -> list[int]:
    """Ports that are free now: the programs of others cannot say which port they took."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket(AF_INET, SOCK_STREAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _answers(port: int) -> bool:
    with socket(AF_INET, SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(child: Child, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not ready():
        if not child.running or time.monotonic() > deadline:
            raise ChildError(f"{child.name} did not start: {child.tail()}")
        time.sleep(0.1)
