"""A real Apache Kafka broker: one KRaft node from its published jars, for the demo and for tests.

Maven fetches the jars once into the user's cache. Beside them lies a formatted data directory, which holds no ports and is copied for each broker.
A lock lets one process at a time fill the cache, and the marker is written last.
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from framegate.control.demo.processes import ending_with_us, find_java

__all__ = ["VERSION", "Broker", "BrokerError", "cache_directory", "java_command", "missing_tools", "prepare"]

VERSION: Final = "4.3.1"
"""Of Kafka. 4.4.0 and 4.0.1 are incomplete on the registry."""

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
_SETTINGS: Final = """process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
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
_API_VERSIONS: Final = bytes.fromhex("0000000b0012000000000001000170")
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
    """Fill the cache unless it is full: 45 MB of jars, about ten seconds.

    Returns:
        The cache directory, with ``jars``, ``formatted`` and ``log4j2.properties``.

    Raises:
        BrokerError: a tool is missing or fails.
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
            (cache / "format.properties").write_text(_properties({"CONTROLLER": 9093, "INTERNAL": 9092}, {}, cache / "formatted", {}, _PROTOCOLS))
            _run(*java_command(cache), "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(cache / "format.properties"))
            (cache / _MARKER).touch()
    return cache


class Broker:
    """One broker and controller in a process of its own. Its ports are reserved from the beginning.

    The listeners ``PLAIN`` and, with users, ``SASL`` (mechanism PLAIN, no TLS) advertise the ports that ``start`` gets, so that clients come through
    a proxy; ``INTERNAL`` advertises itself.

    Args:
        directory: for data, log and settings; made when missing.
        users: names and passwords for SASL.
        listeners: further listeners: the name in upper case, and Kafka's name of the security protocol (``SASL_SSL``).
        settings: further lines of the broker's properties; they override others with the same key.
        options: more options of Java.
    """

    def __init__(
        self,
        directory: Path,
        users: Mapping[str, str] | None = None,
        *,
        listeners: Mapping[str, str] | None = None,
        settings: str = "",
        options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self._users = dict(users or {})
        self._protocols = {**_PROTOCOLS, **(listeners or {})}
        self._settings = settings
        self._options = tuple(options)
        names = ["CONTROLLER", "INTERNAL", "PLAIN", *(["SASL"] if self._users else []), *(listeners or {}), "JMX"]
        self._reserved = [_reserved_socket() for _ in names]
        self.ports = {name: reserved.getsockname()[1] for name, reserved in zip(names, self._reserved, strict=True)}
        self._process: subprocess.Popen[bytes] | None = None
        self._cache = Path()

    @property
    def internal_address(self) -> str:
        """The address for clients that do not go through the proxy."""
        return f"{_HOST}:{self.ports['INTERNAL']}"

    def start(self, advertised: Mapping[str, int], timeout_s: float = 30.0) -> None:
        """Start and wait until the broker answers.

        Args:
            advertised: by listener, the port on 127.0.0.1 that its clients are sent to; other listeners advertise their own.
            timeout_s: for the start.

        Raises:
            BrokerError: it ended or did not answer; the message has the end of its log.
        """
        self._cache = prepare()
        self.directory.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self._cache / "formatted", self.directory / "data", dirs_exist_ok=True)
        listeners = {name: port for name, port in self.ports.items() if name != "JMX"}
        settings = self.directory / "server.properties"
        properties = _properties(listeners, advertised, self.directory / "data", self._users, self._protocols)
        settings.write_text(properties + self._settings)
        settings.chmod(0o600)
        jmx = {"port": self.ports["JMX"], "rmi.port": self.ports["JMX"], "authenticate": "false", "ssl": "false", "host": _HOST}
        options = [f"-Dcom.sun.management.jmxremote.{key}={value}" for key, value in jmx.items()]
        with (self.directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                ending_with_us(
                    [*java_command(self._cache, *options, *self._options, f"-Djava.rmi.server.hostname={_HOST}"), "kafka.Kafka", str(settings)]
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                said = (self.directory / "broker.log").read_text(errors="replace").splitlines()
                raise BrokerError(f"the broker did not start: {' | '.join(said[-5:])}")
            time.sleep(0.05)

    def request_counts(self) -> dict[tuple[str, int], int]:
        """How many requests the broker has finished, by API name and version, over all its listeners, read over JMX. ``FetchConsumer`` and
        ``FetchFollower`` are parts of ``Fetch`` and left out.
        """
        url = f"service:jmx:rmi:///jndi/rmi://{_HOST}:{self.ports['JMX']}/jmxrmi"
        query = ["--object-name", "kafka.network:type=RequestMetrics,name=RequestsPerSec,*", "--attributes", "Count"]
        tool = ["org.apache.kafka.tools.JmxTool", "--jmx-url", url, "--one-time", "--report-format", "tsv", *query]
        counts: dict[tuple[str, int], int] = {}
        for line in _run(*java_command(self._cache), *tool).splitlines():
            name, _, value = line.partition("\t")
            if "request=" in name:
                properties = dict(part.split("=", 1) for part in name.rpartition(":")[0].partition(":")[2].split(","))
                if not properties["request"].startswith("Fetch") or properties["request"] == "Fetch":
                    counts[properties["request"], int(properties["version"])] = int(float(value))
        return counts

    def stop(self) -> None:
        """End it with SIGTERM, for a clean log on disk, and after 10 s with SIGKILL. Its ports are free then."""
        for reserved in self._reserved:
            reserved.close()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answers(self) -> bool:
        try:
            with socket.create_connection((_HOST, self.ports["PLAIN"]), timeout=1.0) as probe:
                probe.sendall(_API_VERSIONS)
                return len(probe.recv(4)) == 4
        except OSError:
            return False


def java_command(cache: Path, *options: str) -> list[str]:
    """The command that runs Java with Kafka's jars, with settings for a process that lives for a minute.

    Args:
        cache: what ``prepare`` returned.
        options: further options of Java; they override those of memory.

    Raises:
        BrokerError: there is no Java.
    """
    java = find_java()
    if java is None:
        raise BrokerError("needs Java 17 or newer")
    tuning = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms64m", "-Xmx256m"]
    return [java, *tuning, f"-Dlog4j2.configurationFile={cache / 'log4j2.properties'}", *options, "-cp", f"{cache / 'jars'}/*"]


def _properties(
    listeners: Mapping[str, int], advertised: Mapping[str, int], data: Path, users: Mapping[str, str], protocols: Mapping[str, str]
) -> str:
    lines = [
        f"controller.quorum.voters=1@{_HOST}:{listeners['CONTROLLER']}",
        f"log.dirs={data}",
        "listener.security.protocol.map=" + ",".join(f"{name}:{protocols[name]}" for name in listeners),
        "listeners=" + ",".join(f"{name}://{_HOST}:{port}" for name, port in listeners.items()),
        "advertised.listeners="
        + ",".join(f"{name}://{_HOST}:{advertised.get(name, port)}" for name, port in listeners.items() if name != "CONTROLLER"),
    ]
    if users:
        known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        lines.append(f"listener.name.sasl.plain.sasl.jaas.config={module} required {known};")
    return _SETTINGS + "\n".join(lines) + "\n"


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


def _reserved_socket() -> socket.socket:
    """A socket that is bound to a free port. As long as it exists, the system gives that port to no program that asks for any port. The broker, which
    asks for this very port, gets it: both reuse addresses, and this socket does not listen.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((_HOST, 0))
    return reserved
