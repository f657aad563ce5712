"""What the dashboards are shown over: two framegates with clients of three kinds, a collector that takes what they export, and Prometheus; and where
those programs are, on PATH or in the cache that ``make dashboards`` fills.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, socket
from typing import Any, Final

from framegate.control.demo import certificates
from framegate.control.demo.processes import Child, ChildError
from framegate.control.demo.stage import LISTENER, Stage
from framegate.control.demo.steering import Steering
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from tests.demo.clients import KafkaClients, Visitors
from tests.demo.panels import Prometheus
from tests.fakes.small_disk import tiny_disk

__all__ = ["EXPORT_S", "JOB", "MIB", "PARTNERS", "SCRAPE_JOB", "Environment", "Tools", "environment", "find"]

EXPORT_S: Final = 1
"""Seconds between exports, and between scrapes."""
JOB: Final = "framegate"
"""The label ``job`` of what came over OTLP."""
SCRAPE_JOB: Final = "scrape"
"""The same of what Prometheus asked framegate for."""
PARTNERS: Final = "partners"
KAFKA: Final = "kafka"
TAP_MIB: Final = 192
MIB: Final = 1 << 20
_USER: Final = "orders"
_RATE: Final = 300
_CONNECTIONS: Final = 8
_START_S: Final = 30.0
_POLL_S: Final = 0.1
_TALK_S: Final = 10.0
_VALIDITY: Final = datetime.timedelta(days=90)
_COLLECTORS: Final = ("otelcol", "otelcol-contrib")
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ADVICE: Final = "make dashboards gets it"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What there is; None: it is not here.

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
        """What the run cannot do without, for people; empty when nothing."""
        return [f"Prometheus (prometheus) is neither on PATH nor in the cache: {_ADVICE}"] if self.prometheus is None else []

    def no_collector(self) -> str | None:
        """Why nothing will go over OTLP; None when it can."""
        return f"no collector (otelcol) is on PATH or in the cache: {_ADVICE}" if self.collector is None else None

    def no_pictures(self) -> str | None:
        """Why there will be no pictures; None when there can be."""
        if self.browser is None:
            return "Chromium is not on PATH (on Debian: apt-get install chromium)"
        return f"the page that draws them is not in the cache: {_ADVICE}" if self.page is None else None


def find() -> Tools:
    """Look for all of them; the newest in the cache counts."""
    pages = [folder / "page" for folder in _kept() if (folder / "page" / "page.js").exists()]
    return Tools(
        collector=_program(_COLLECTORS),
        prometheus=_program(("prometheus",)),
        browser=next(filter(None, map(shutil.which, _BROWSERS)), None),
        page=pages[-1] if pages else None,
    )


def _kept() -> list[Path]:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return sorted((base / "framegate").glob("telemetry-*"))


def _program(names: tuple[str, ...]) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *(str(folder / "bin") for folder in reversed(_kept()))])
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)


class Environment:
    """What scenarios are made with.

    Attributes:
        steering: the control plane of the framegate that is looked at.
        metrics: ``host:port`` of the metrics of both framegates.
        prometheus: where everything is counted.
        tap_disk: the small disk of the tap; None: it could not be mounted.
        clients: Kafka's, in miniature.
    """

    def __init__(self, stage: Stage, prometheus: Prometheus, steering: Steering, ports: dict[str, int], clients: KafkaClients) -> None:
        self.stage = stage
        self.prometheus = prometheus
        self.steering = steering
        self.clients = clients
        self.tap_disk: Path | None = None
        self.metrics: dict[str, str] = {}
        self._ports = ports
        self._stranger = certificates.create(stage.workspace.certificates / "stranger")

    def connect(self, listener: str = LISTENER, *, stranger: bool = False) -> ssl.SSLSocket:
        """A client of a TLS listener, its handshake done; a stranger's certificate comes from an authority that nobody trusts.

        Raises:
            OSError: it was not let in.
        """
        made = self._stranger if stranger else self.stage.certificates
        context = ssl.create_default_context(cafile=self.stage.certificates.ca)
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
        stage: its processes end with it.
        tools: a Prometheus, and a collector, without which there are only scrapes.
        collector_yaml: the collector's configuration, used as it is but for its addresses.
        say: takes what could not be had.

    Raises:
        ChildError: something did not start.
    """
    assert tools.prometheus is not None, "Tools.missing comes first"
    stage.certificates = certificates.create(stage.workspace.certificates, _VALIDITY)
    otlp, exported, health, asked = _free_ports(4)
    with contextlib.ExitStack() as undo:
        mounted = undo.enter_context(tiny_disk(stage.workspace.tap, TAP_MIB))
        if not mounted:
            say("full tap: not run: a small disk cannot be mounted here (needs root)")
        if tools.collector is None:
            otlp = exported = 0
        else:
            collector = stage.start(
                "collector", [tools.collector, "--config", str(collector_yaml), "--config", _overlay(stage, otlp, exported, health)]
            )
            _until(collector, _START_S, lambda: _answers(health))
        upstream = stage.start_framegate("upstream", stage.workspace.upstream_configuration, _upstream(stage, otlp))
        row = upstream.wait_for_event("serving", _START_S)
        behind = {name: address.rpartition(":")[2] for name, address in row["listeners"].items()}
        stage.proxy = stage.start_framegate("proxy", stage.workspace.configuration, _proxy(stage, otlp, behind))
        served = stage.proxy.wait_for_event("serving", _START_S)
        metrics = {"upstream": row["prometheus"], "demo": served["prometheus"]}
        prometheus = _start_prometheus(stage, tools.prometheus, asked, exported, list(metrics.values()))
        ports = {name: int(address.rpartition(":")[2]) for name, address in served["listeners"].items()}
        options = {"port": ports[LISTENER], "rate": _RATE, "connections": _CONNECTIONS, "ca": str(stage.certificates.ca)}
        stage.start_module("framegate.control.demo.generator", json.dumps(options))
        steering = undo.enter_context(Steering(stage.workspace.admin, LISTENER))
        clients = undo.enter_context(KafkaClients(("127.0.0.1", ports[KAFKA])))
        made = Environment(stage, prometheus, steering, ports, clients)
        made.tap_disk = stage.workspace.tap if mounted else None
        made.metrics = metrics
        undo.enter_context(Visitors(lambda: made.connect(PARTNERS)))
        yield made


def _start_prometheus(stage: Stage, program: str, port: int, exported: int, targets: list[str]) -> Prometheus:
    jobs: list[dict[str, Any]] = [{"job_name": SCRAPE_JOB, "static_configs": [{"targets": targets}]}]
    if exported:
        jobs.append({"job_name": "collector", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{exported}"]}]})
    folder = stage.workspace.root / "prometheus"
    folder.mkdir(exist_ok=True)
    every = f"{EXPORT_S}s"
    file = _write(folder / "prometheus.yaml", {"global": {"scrape_interval": every, "scrape_timeout": every}, "scrape_configs": jobs})
    data = folder / f"data-{os.getpid()}"
    options = [f"--config.file={file}", f"--storage.tsdb.path={data}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    child = stage.start("prometheus", [program, *options])
    prometheus = Prometheus(f"127.0.0.1:{port}")
    _until(child, _START_S, prometheus.ready)
    return prometheus


def _overlay(stage: Stage, otlp: int, exported: int, health: int) -> str:
    """What is different here in the collector's configuration: addresses, and that nobody waits five seconds for a batch."""
    document = {
        "extensions": {"health_check": {"endpoint": f"127.0.0.1:{health}"}},
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{otlp}"}}}},
        "processors": {"batch": {"timeout": "100ms"}},
        "exporters": {"prometheus": {"endpoint": f"127.0.0.1:{exported}"}},
        "service": {"telemetry": {"metrics": {"level": "none"}}},
    }
    return str(_write(stage.workspace.root / "collector.yaml", document))


def _upstream(stage: Stage, otlp: int) -> dict[str, Any]:
    """The framegate behind: handlers that answer, the one of Kafka's requests behind a login."""
    place = stage.workspace
    password, users = place.certificates / "password", place.certificates / "users"
    text = os.urandom(12).hex()
    _write_secret(password, text + "\n")
    with changing(users) as file:
        file.add(_USER, new_credentials(text, iterations=4096))
    handled = {"max_receive_size": "8MiB", "address": "127.0.0.1:0"}
    return {
        "node": "upstream",
        "processors": 1,
        "admin": {"address": place.upstream_admin},
        "memory_pool": {"size": "64MiB"},
        "handlers": {"timeout": 0, "path": [str(Path(__file__).parent)]},
        "listeners": [
            {"name": LISTENER, "handler": "framegate.control.demo.upstream:Upstream", **handled},
            {
                "name": KAFKA,
                "handler": "clients:KafkaUpstream",
                "protocol": "kafka",
                "sasl": {"mechanisms": ["SCRAM-SHA-256"], "users": str(users)},
                **handled,
            },
        ],
        "telemetry": _telemetry(otlp),
    }


def _proxy(stage: Stage, otlp: int, behind: dict[str, str]) -> dict[str, Any]:
    """The framegate that is looked at: TLS, TLS with clients' certificates, and Kafka with a login upstream; all of it recorded."""
    place, made = stage.workspace, stage.certificates
    tls = {"certificate": str(made.server), "key": str(made.server_key)}
    login = {"mechanism": "SCRAM-SHA-256", "user": _USER, "password_file": str(place.certificates / "password")}
    return {
        "node": "demo",
        "processors": 2,
        "admin": {"address": place.admin},
        "health": {"address": "127.0.0.1:0"},
        "memory_pool": {"size": "64MiB"},
        "listeners": [
            {"name": LISTENER, "address": "127.0.0.1:0", "max_receive_size": "4MiB", "tls": tls, "upstream": "framed"},
            {
                "name": PARTNERS,
                "address": "127.0.0.1:0",
                "max_receive_size": "512KiB",
                "tls": {**tls, "client_auth": "required", "client_ca": str(made.ca)},
                "upstream": "framed",
            },
            {"name": KAFKA, "address": "127.0.0.1:0", "protocol": "kafka", "max_receive_size": "512KiB", "upstream": "brokers"},
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


def _write_secret(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses now: the programs of others cannot say which one they took."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket(AF_INET, SOCK_STREAM)) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket(AF_INET, SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(child: Child, patience_s: float, ready: Callable[[], bool]) -> None:
    """Wait until a program of others is ready.

    Raises:
        ChildError: it ended, or the time passed.
    """
    deadline = time.monotonic() + patience_s
    while not ready():
        if not child.running or time.monotonic() > deadline:
            raise ChildError(f"{child.name} did not start: {child.tail()}")
        time.sleep(_POLL_S)
