"""What the dashboards are shown over: nodes, each a framegate with its servers and clients; a collector for what they export; and Prometheus.

Prometheus evaluates the rules of ``deploy/alerts`` with shorter durations. The programs of others are found on PATH or in the cache that
``make dashboards`` fills.
"""

import contextlib
import datetime
import functools
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import AF_INET, SOCK_STREAM, create_connection, socket
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML

from framegate.control.demo import certificates
from framegate.control.demo.processes import Child, ChildError
from framegate.control.demo.stage import COMMAND, LISTENER, Stage
from framegate.control.demo.steering import Steering
from framegate.control.identity.passwords import new_credentials
from framegate.control.identity.users_file import changing
from tests.demo.clients import call_kafka, log_in, repeating, visit
from tests.demo.panels import Prometheus
from tests.fakes.ports import free_ports
from tests.fakes.small_disk import tiny_disk

EXPORT_S: Final = 1  # seconds between exports, and between scrapes
JOB: Final = "framegate"  # the label ``job`` of series that came over OTLP
SCRAPE_JOB: Final = "scrape"  # the label ``job`` of series that Prometheus scraped
FASTER: Final = 20  # by so much the durations of alerting rules are shorter: windows of rates, ``for`` and offsets
PARTNERS, ORDERS, LOGINS, HANDLED = "partners", "orders", "logins", "handled"
"""Listeners beside that of the load: with client certificates; Kafka; Kafka with logins; with a handler."""
USER: Final = "orders"
TAP_MIB: Final = 192
MIB: Final = 1 << 20
BROKERS: Final = 4
_START_S: Final = 60.0
_TALK_S: Final = 10.0
_VALIDITY: Final = datetime.timedelta(days=90)
_DURATION: Final = re.compile(r"(\[|offset )(\d+[smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_BACKEND: Final = Path(__file__).with_name("backend.py")
_ADVICE: Final = "make dashboards gets it"


class Tools(NamedTuple):
    """The programs of others that were found; None: not found."""

    collector: str | None  # OpenTelemetry's, with the components of ``deploy/collector``
    prometheus: str | None  # the server
    browser: str | None  # Chromium
    page: Path | None  # the folder with ``page.js`` and ``page.css``, which draw a dashboard

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


class Node:
    """One framegate, with the servers behind it, its clients, and a small disk for its tap."""

    ports: dict[str, int]  # of its listeners
    brokers: list[int]  # the ports of the four servers of Kafka behind ``ORDERS``
    # proxy, backend: processes
    proxy: Child
    backend: Child
    steering: Steering  # its control API, about the listener of the load

    def __init__(self, name: str, stage: Stage, sockets: str, undo: contextlib.ExitStack) -> None:
        self.name = name  # of the node, the label ``instance`` of its series
        self.root = stage.workspace.tap / name
        self.admin = f"unix:{sockets}/{name}.sock"
        self._stage, self._stranger = stage, certificates.create(stage.workspace.certificates / "stranger")
        (self.root / "tap").mkdir(parents=True, exist_ok=True)
        # the tap's folder, a disk of its own; None: it could not be mounted
        self.disk = self.root / "tap" if undo.enter_context(tiny_disk(self.root / "tap", TAP_MIB)) else None
        self.password = os.urandom(12).hex()
        self._undo = undo

    def start(self, otlp: int) -> None:
        """Start its processes, without waiting for the framegate. ``otlp``: the collector's port; 0: none."""
        self.backend = self._stage.start(f"{self.name}-backend", [sys.executable, str(_BACKEND), str(BROKERS)])
        echo, *self.brokers = self.backend.wait_for_event("serving", _START_S)["ports"]
        self._document = self._configuration(otlp, echo)
        self.proxy = self._stage.start_framegate(self.name, self.root.with_suffix(".yaml"), self._document)

    def wait(self) -> str:
        """Wait until it serves, and start its clients; ``host:port`` of its metrics."""
        served = self.proxy.wait_for_event("serving", _START_S)
        self.ports = {name: int(address.rpartition(":")[2]) for name, address in served["listeners"].items()}
        self.steering = self._undo.enter_context(Steering(self.admin, LISTENER))
        options = {"port": self.ports[LISTENER], "rate": 40, "connections": 4, "ca": str(self._stage.certificates.ca)}
        self._stage.start(f"{self.name}-load", [sys.executable, "-m", "framegate.control.demo.generator", json.dumps(options)])
        self._undo.enter_context(repeating(functools.partial(call_kafka, self.address(ORDERS)), 2))
        self._undo.enter_context(repeating(lambda _over: log_in(self.address(LOGINS), USER, self.password), pause_s=1.0))
        self._undo.enter_context(repeating(lambda _over: visit(self.connect(PARTNERS)), pause_s=1.0))
        self._undo.enter_context(repeating(lambda _over: self.ask_handler(b"good morning"), pause_s=1.0))
        metrics: str = served["prometheus"]
        return metrics

    def address(self, listener: str) -> tuple[str, int]:
        return "127.0.0.1", self.ports[listener]

    def connect(self, listener: str = LISTENER, *, stranger: bool = False) -> ssl.SSLSocket:
        """A client of a TLS listener after its handshake. A stranger's certificate comes from an authority that framegate does not know. Raises
        OSError: the connection was refused.
        """
        made = self._stranger if stranger else self._stage.certificates
        context = ssl.create_default_context(cafile=self._stage.certificates.ca)
        context.load_cert_chain(made.client, made.client_key)
        plain = socket(AF_INET, SOCK_STREAM)
        plain.settimeout(_TALK_S)
        try:
            plain.connect(self.address(listener))
            return context.wrap_socket(plain, server_hostname="localhost")
        except BaseException:
            plain.close()
            raise

    def ask_handler(self, body: bytes) -> None:
        """Let the handler answer a frame."""
        visit(create_connection(self.address(HANDLED), _TALK_S), body)

    def framegate(self, *words: str) -> str:
        """What a command of framegate's command line prints. Raises ChildError: it failed."""
        done = subprocess.run([*COMMAND, *words, "--address", self.admin], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise ChildError(f"{self.name}: framegate {' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    @contextlib.contextmanager
    def configured(self, change: Callable[[dict[str, Any]], None]) -> Iterator[None]:
        """Another configuration, applied while traffic flows. ``change`` gets a copy to change."""
        document = json.loads(json.dumps(self._document))
        change(document)
        changed = _write(self.root / "changed.yaml", document)
        self.framegate("config", "apply", str(changed))
        try:
            yield
        finally:
            self.framegate("config", "apply", str(self.root.with_suffix(".yaml")))

    @contextlib.contextmanager
    def backend_told(self, **wanted: Any) -> Iterator[None]:
        """The servers behind it are told something, see ``backend``."""
        self.backend.send(wanted)
        try:
            yield
        finally:
            self.backend.send({})

    def processes(self) -> list[int]:
        """The pids of the framegate's processes, its control process first."""
        found = [self.proxy.pid]
        for pid in found:
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, path.read_text().split())
        return found

    def _configuration(self, otlp: int, echo: int) -> dict[str, Any]:
        """TLS, TLS with client certificates, Kafka, Kafka with logins, and a handler; all tapped."""
        made, root = self._stage.certificates, self.root
        with changing(root / "users") as file:
            file.add(USER, new_credentials(self.password, iterations=4096))
        tls = {"certificate": str(made.server), "key": str(made.server_key)}
        mutual = {**tls, "client_auth": "required", "client_ca": str(made.ca)}
        address = {"address": "127.0.0.1:0", "max_receive_size": "512KiB"}
        kafka = {**address, "protocol": "kafka"}
        sasl = {"mechanisms": ["PLAIN", "SCRAM-SHA-256"], "users": str(root / "users")}
        exported = {"otlp": {"endpoint": f"http://127.0.0.1:{otlp}", "interval": f"{EXPORT_S}s"}} if otlp else {}
        return {
            **self._stage.configuration("", {}, {}),
            "node": self.name,
            "processors": 1,
            "admin": {"address": self.admin},
            "listeners": [
                {"name": LISTENER, **address, "max_receive_size": "4MiB", "tls": tls, "upstream": "framed"},
                {"name": PARTNERS, **address, "tls": mutual, "upstream": "framed"},
                {"name": ORDERS, **kafka, "upstream": "orders"},
                {"name": LOGINS, **kafka, "sasl": sasl, "upstream": "orders"},
                {"name": HANDLED, **address, "max_receive_size": "4MiB", "handler": "clients:Handler"},
            ],
            "upstreams": [
                {"name": "framed", "endpoints": [f"127.0.0.1:{echo}"]},
                {"name": "orders", "endpoints": [f"127.0.0.1:{port}" for port in self.brokers]},
            ],
            "handlers": {"path": [str(Path(__file__).parent)]},
            "tap": {
                "directory": str(root / "tap"),
                "budget": TAP_MIB * MIB * 2 // 3,
                "segment_size": "8MiB",
                "rules": [{"name": "all", "on_full": "drop"}],
            },
            "telemetry": {**exported, "prometheus": {"address": "127.0.0.1:0"}},
            "drain": {"timeout": "5s"},
        }


class Environment(NamedTuple):
    """``nodes``, whose series Prometheus has; only the first one is also scraped, if there is a collector."""

    nodes: list[Node]
    prometheus: Prometheus


@contextlib.contextmanager
def environment(stage: Stage, tools: Tools, deploy: Path, count: int) -> Iterator[Environment]:
    """Start everything, and wait until all of it serves.

    Args:
        stage: ends the processes.
        tools: with Prometheus; without a collector there are only scrapes.
        deploy: the folder with ``collector/collector.yaml`` and ``alerts/framegate.yaml``.
        count: how many nodes.

    Raises ChildError: a process did not start.
    """
    assert tools.prometheus is not None, "the caller has asked Tools.missing"
    place = stage.workspace
    stage.certificates = certificates.create(place.certificates, _VALIDITY)
    otlp, exported, health, asked = free_ports(4)
    with contextlib.ExitStack() as undo:
        if tools.collector is None:
            otlp = exported = 0
        else:
            overlay = _write(place.root / "collector.yaml", _collector(otlp, exported, health))
            files = [f"--config={file}" for file in (deploy / "collector" / "collector.yaml", overlay)]
            collector = stage.start("collector", [tools.collector, *files])
            _until(collector, lambda: _answers(health))
        sockets = undo.enter_context(tempfile.TemporaryDirectory(prefix="framegate-demo-"))  # their paths must be short
        nodes = [Node(f"edge-{number}", stage, sockets, undo) for number in range(count)]
        for node in nodes:
            node.start(otlp)
        metrics = {node.name: node.wait() for node in nodes}
        targets = dict(list(metrics.items())[: 1 if otlp else None])
        yield Environment(nodes, _start_prometheus(stage, tools.prometheus, asked, exported, targets, deploy / "alerts" / "framegate.yaml"))


def seconds_of(duration: str) -> int:
    """Of a duration of the rules, divided by ``FASTER``."""
    return int(duration[:-1]) * _SECONDS[duration[-1]] // FASTER


def shortened_rules(text: str) -> dict[str, Any]:
    """A file of rules with shorter durations: nothing else differs from what is shipped."""
    document: dict[str, Any] = YAML(typ="safe").load(text)
    for rule in (rule for group in document["groups"] for rule in group["rules"]):
        rule["for"] = f"{seconds_of(rule['for'])}s"
        rule["expr"] = _DURATION.sub(lambda found: f"{found[1]}{seconds_of(found[2])}s", rule["expr"])
    return document


def _start_prometheus(stage: Stage, program: str, port: int, exported: int, targets: dict[str, str], rules: Path) -> Prometheus:
    scraped = [{"targets": [address], "labels": {"instance": node}} for node, address in targets.items()]
    jobs: list[dict[str, Any]] = [{"job_name": SCRAPE_JOB, "static_configs": scraped}]
    if exported:
        jobs.append({"job_name": "collector", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{exported}"]}]})
    folder, every = stage.workspace.root / "prometheus", f"{EXPORT_S}s"
    folder.mkdir(exist_ok=True)
    file = _write(
        folder / "prometheus.yaml",
        {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": "2s"},
            "rule_files": [str(_write(folder / "rules.yaml", shortened_rules(rules.read_text())))],
            "scrape_configs": jobs,
        },
    )
    options = [f"--storage.tsdb.path={folder / f'data-{os.getpid()}'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    child = stage.start("prometheus", [program, f"--config.file={file}", *options])
    prometheus = Prometheus(f"127.0.0.1:{port}")
    _until(child, prometheus.ready)
    return prometheus


def _collector(otlp: int, exported: int, health: int) -> dict[str, Any]:
    """What differs from the collector's configuration: addresses, and a batch is sent after 100 ms instead of 5 s, and series end after 5 s."""
    return {
        "extensions": {"health_check": {"endpoint": f"127.0.0.1:{health}"}},
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": f"127.0.0.1:{otlp}"}}}},
        "processors": {"batch": {"timeout": "100ms"}},
        "exporters": {"prometheus": {"endpoint": f"127.0.0.1:{exported}", "metric_expiration": "5s"}},
        "service": {"telemetry": {"metrics": {"level": "none"}}},
    }


def _write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document, indent=2) + "\n")  # JSON is YAML
    return path


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
