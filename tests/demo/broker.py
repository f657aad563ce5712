"""A real Apache Kafka broker: one KRaft node from its published jars, for the demo and for tests. ``brokers`` makes clusters of them.

Maven fetches the jars once into the user's cache. Beside them lies a formatted data directory, which holds no ports and is copied for each broker.
A lock lets one process at a time fill the cache, and the marker is written last.
"""

import base64
import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from framegate.control.demo.processes import ending_with_us, find_java

VERSION: Final = "4.3.1"  # Of Kafka. 4.4.0 and 4.0.1 are incomplete on the registry.

_CLUSTER_ID: Final = "4L6g3nShT-eMCtK--X86sw"
_MARKER: Final = "complete"
_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>framegate</groupId>
  <artifactId>kafka-broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version>
      <exclusions><exclusion><groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId></exclusion></exclusions>
    </dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.4</version></dependency>
  </dependencies>
</project>
"""
_LOG4J: Final = """status=warn
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %m (%c)%n
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
"""
_SETTINGS: Final = """controller.listener.names=CONTROLLER
inter.broker.listener.name=INTERNAL
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
num.network.threads=1
num.io.threads=2
log.cleaner.dedupe.buffer.size=2097152
sasl.enabled.mechanisms=PLAIN
"""
_PROTOCOLS: Final = {"CONTROLLER": "PLAINTEXT", "INTERNAL": "PLAINTEXT", "PLAIN": "PLAINTEXT", "SASL": "SASL_PLAINTEXT"}
_METADATA: Final = bytes.fromhex("0000000f 0003 0001 00000001 0001 70 00000000")
"""A request of version 1 for no topics: its answer begins with size, correlation id and the number of brokers."""
_HOST: Final = "127.0.0.1"
_TOOL_S: Final = 300.0
_FETCH_S: Final = 900.0


class BrokerError(Exception):
    """The broker could not be fetched, or did not start."""


def cache_directory() -> Path:
    """The folder of this version's jars: ``$XDG_CACHE_HOME/framegate/kafka-<version>``, by default below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "framegate" / f"kafka-{VERSION}"


def missing_tools() -> list[str]:
    """What is to be installed before a broker can start: Java, and Maven if the cache is not filled."""
    missing = [] if find_java() else ["Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)"]
    if not (cache_directory() / _MARKER).exists() and shutil.which("mvn") is None:
        missing.append("Maven (Debian: apt-get install maven)")
    return missing


def prepare() -> Path:
    """Fill the cache unless it is full: 45 MB of jars, about ten seconds. Returns: The cache directory, with ``jars``, ``formatted`` and
    ``log4j2.properties``. Raises BrokerError: a tool is missing or fails.
    """
    missing = missing_tools()
    if missing:
        raise BrokerError(f"needs {' and '.join(missing)}")
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / _MARKER).exists():
            for name in ("jars", "formatted"):
                shutil.rmtree(cache / name, ignore_errors=True)
            (cache / "pom.xml").write_text(_POM)
            (cache / "log4j2.properties").write_text(_LOG4J)
            _fetch_jars(cache)
            only = Broker(cache / "unused")
            only.stop()
            (cache / "format.properties").write_text(only.properties({}, cache / "formatted"))
            _run(*java_command(cache), "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(cache / "format.properties"))
            (cache / _MARKER).touch()
    return cache


class Broker:
    """One node in a process of its own: broker and controller, or a broker of a cluster. Its ports are reserved from the beginning.

    The listeners ``PLAIN`` and, with users, ``SASL`` (mechanism PLAIN, no TLS) advertise the ports that ``start`` gets, so that clients come through
    a proxy; ``INTERNAL`` advertises itself.

    Args:
        directory: for data, log and settings; made when missing.
        users: names and passwords for SASL.
        listeners: further listeners: the name in upper case, and Kafka's name of the security protocol (``SASL_SSL``).
        settings: further lines of the broker's properties; they override others with the same key.
        options: more options of Java.
        node: its id.
        host: the loopback address that it listens on and advertises.
        controller: of the cluster; None: this node.
    """

    def __init__(
        self,
        directory: Path,
        users: Mapping[str, str] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        settings: str = "",
        options: Sequence[str] = (),
        node: int = 1,
        host: str = _HOST,
        controller: "Broker | None" = None,
    ) -> None:
        self.directory = directory
        self.node = node
        self.host = host
        self._controller = controller or self
        self._users = dict(users or {})
        self._protocols = {**_PROTOCOLS, **(listeners or {})}
        self._settings = settings
        self._options = tuple(options)
        self._client_listeners = ["PLAIN", *(["SASL"] if self._users else []), *(listeners or {})]
        self._reserved: list[socket.socket] = []
        self.ports: dict[str, int] = {}
        self._reserve([*([] if controller else ["CONTROLLER"]), "INTERNAL", *self._client_listeners, "JMX"])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def internal_address(self) -> str:
        """The address for clients that do not go through the proxy."""
        return f"{self.host}:{self.ports['INTERNAL']}"

    @property
    def client_addresses(self) -> dict[str, tuple[str, int]]:
        """By listener, without those that are only for the cluster itself."""
        return {name: (self.host, self.ports[name]) for name in self._client_listeners}

    @property
    def pid(self) -> int:
        """Of its process; 0 when there is none."""
        return self._process.pid if self._process else 0

    def start(self, advertised: Mapping[str, int] | None = None, timeout_s: float = 30.0) -> None:
        """Start and wait until the broker answers. ``advertised``: by listener, the port on the same address that its clients are sent to; other
        listeners advertise their own. ``timeout_s``: for the start. Raises BrokerError: it ended or did not answer; the message has the end of its
        log.
        """
        self.launch(advertised or {})
        self.wait(1, timeout_s)

    def launch(self, advertised: Mapping[str, int]) -> None:
        """Start its process, as of ``start``. A directory that has data keeps them."""
        cache = prepare()
        self.directory.mkdir(parents=True, exist_ok=True)
        data = self.directory / "data"
        if not data.exists():
            shutil.copytree(cache / "formatted", data)
            identity = {"version": 1, "cluster.id": _CLUSTER_ID, "node.id": self.node, "directory.id": _directory_id()}
            (data / "meta.properties").write_text("".join(f"{key}={value}\n" for key, value in identity.items()))
        settings = self.directory / "server.properties"
        settings.write_text(self.properties(advertised, data))
        settings.chmod(0o600)
        jmx = {"port": self.ports["JMX"], "rmi.port": self.ports["JMX"], "authenticate": "false", "ssl": "false", "host": self.host}
        options = [f"-Djava.rmi.server.hostname={self.host}"]
        options += [f"-Dcom.sun.management.jmxremote.{key}={value}" for key, value in jmx.items()]
        with (self.directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                ending_with_us([*java_command(cache, *options, *self._options), "kafka.Kafka", str(settings)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )

    def wait(self, brokers: int, timeout_s: float = 30.0) -> None:
        """Wait until it answers clients and knows so many brokers, itself among them; raises as ``start``."""
        deadline = time.monotonic() + timeout_s
        while self._known_brokers() < brokers:
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                said = (self.directory / "broker.log").read_text(errors="replace").splitlines()
                raise BrokerError(f"the broker did not start: {' | '.join(said[-5:])}")
            time.sleep(0.05)

    def properties(self, advertised: Mapping[str, int], data: Path) -> str:
        """The text of its settings; ``advertised`` as of ``start``, ``data``: the folder."""
        at = {name: port for name, port in self.ports.items() if name != "JMX"}
        shown = {name: advertised.get(name, port) for name, port in at.items() if name != "CONTROLLER"}
        quorum = self._controller
        lines = [
            f"process.roles={'broker,controller' if quorum is self else 'broker'}",
            f"node.id={self.node}",
            f"controller.quorum.voters={quorum.node}@{quorum.host}:{quorum.ports['CONTROLLER']}",
            f"log.dirs={data}",
            "listener.security.protocol.map=" + ",".join(f"{name}:{self._protocols[name]}" for name in {"CONTROLLER": 0, **at}),
            "listeners=" + ",".join(f"{name}://{self.host}:{port}" for name, port in at.items()),
            "advertised.listeners=" + ",".join(f"{name}://{self.host}:{port}" for name, port in shown.items()),
        ]
        if self._users:
            known = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
            module = "org.apache.kafka.common.security.plain.PlainLoginModule"
            lines.append(f"listener.name.sasl.plain.sasl.jaas.config={module} required {known};")
        return _SETTINGS + "\n".join(lines) + "\n" + self._settings

    def request_counts(self) -> dict[tuple[str, int], int]:
        """How many requests the broker has finished, by API name and version, over all its listeners, read over JMX. ``Fetch`` is that of consumers,
        without that of other brokers.
        """
        url = f"service:jmx:rmi:///jndi/rmi://{self.host}:{self.ports['JMX']}/jmxrmi"
        query = ["--object-name", "kafka.network:type=RequestMetrics,name=RequestsPerSec,*", "--attributes", "Count"]
        tool = ["org.apache.kafka.tools.JmxTool", "--jmx-url", url, "--one-time", "--report-format", "tsv", *query]
        counts: dict[tuple[str, int], int] = {}
        for line in _run(*java_command(cache_directory()), *tool).splitlines():
            name, _, value = line.partition("\t")
            if "request=" in name:
                properties = dict(part.split("=", 1) for part in name.rpartition(":")[0].partition(":")[2].split(","))
                if properties["request"] not in ("Fetch", "FetchFollower"):
                    counts[properties["request"].replace("FetchConsumer", "Fetch"), int(properties["version"])] = int(float(value))
        return counts

    def stop(self) -> None:
        """End it with SIGTERM, for a clean log on disk, and after 10 s with SIGKILL. Its ports are free then."""
        for reserved in self._reserved:
            reserved.close()
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10.0)
            self.kill()

    def kill(self) -> None:
        """End it with SIGKILL; its ports stay reserved, and it may be launched again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and whatever it had started
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def move(self) -> None:
        """Give the listeners for clients other ports, from the next start on. The former ports stay reserved: nobody answers there."""
        self._reserve(self._client_listeners)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _reserve(self, names: Iterable[str]) -> None:
        for name in names:
            self._reserved.append(_reserved_socket(self.host))
            self.ports[name] = self._reserved[-1].getsockname()[1]

    def _known_brokers(self) -> int:
        """The number of brokers in its answer to Metadata; 0: there was none."""
        try:
            with socket.create_connection((self.host, self.ports["INTERNAL"]), timeout=1.0) as probe:
                probe.sendall(_METADATA)
                answer = probe.recv(12, socket.MSG_WAITALL)
                return int.from_bytes(answer[8:], "big")
        except OSError:
            return 0


def _directory_id() -> str:
    """A random one, as Kafka writes it: 22 characters."""
    return base64.urlsafe_b64encode(b"\1" + os.urandom(15)).decode().rstrip("=")


def java_command(cache: Path, *options: str) -> list[str]:
    """The command that runs Java with Kafka's jars, with settings for a process that lives for a minute. ``cache``: what ``prepare`` returned.
    ``options``: further options of Java; they override those of memory. Raises BrokerError: there is no Java.
    """
    java = find_java()
    if java is None:
        raise BrokerError("needs Java 17 or newer")
    tuning = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms64m", "-Xmx256m"]
    return [java, *tuning, f"-Dlog4j2.configurationFile={cache / 'log4j2.properties'}", *options, "-cp", f"{cache / 'jars'}/*"]


def _run(*command: str) -> str:
    """Run a tool to its end; its output. Raises BrokerError with the last lines that it wrote."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            ending_with_us(command), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_TOOL_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BrokerError(f"{name} was not done within {_TOOL_S:g} s") from error
    if done.returncode:
        said = " | ".join((done.stderr or done.stdout).splitlines()[-5:])
        raise BrokerError(f"{name} failed: {said}")
    return done.stdout


def _fetch_jars(cache: Path) -> None:
    """Let Maven copy the jars into the cache; its output is in ``maven.log``. Raises BrokerError with Maven's own reason."""
    log = cache / "maven.log"
    # the plugin by its whole name: with a short one, Maven without a network only says that it does not know it
    copy = [f"{_PLUGIN}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={cache / 'jars'}"]
    command = ending_with_us(["mvn", "-B", "-q", "-f", str(cache / "pom.xml"), *copy])
    with log.open("wb") as output:
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=_FETCH_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise BrokerError(f"Maven was not done within {_FETCH_S:g} s; its log: {log}") from error
    if done.returncode:
        raise BrokerError(f"Maven could not fetch Kafka's jars: {_maven_reason(log.read_text(errors='replace'))}; its log: {log}")


def _maven_reason(said: str) -> str:
    """The first error in Maven's output, or its last line if something failed before Maven ran."""
    lines = [line.strip() for line in _COLOURS.sub("", said).splitlines() if line.strip()]
    errors = [line.removeprefix("[ERROR]").strip() for line in lines if line.startswith("[ERROR]")]
    return next((error.partition(" -> [Help")[0] for error in errors if error), lines[-1] if lines else "it said nothing")


def _reserved_socket(host: str) -> socket.socket:
    """A socket that is bound to a free port of an address. As long as it exists, the system gives that port to no program that asks for any port.
    The broker, which asks for this very port, gets it: both reuse addresses, and this socket does not listen.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((host, 0))
    return reserved
