"""Other people's Kafka clients, each as a command: lines from standard input go to a topic, or a topic comes out as lines.

Their output is kept as it is.

``everything`` is one run of all that a client of a cluster does. It creates a topic with 3 partitions and 3 replicas, describes the cluster, alters
the topic's configuration and describes it. It produces the numbers from 0 to COUNT - 1 with an idempotent producer and acks=all, and those up to
2 COUNT - 1 in a transaction; another transaction, with the value ``aborted``, is aborted. It consumes the topic in a group from the beginning, but
not what was aborted, until nothing more comes, and deletes it. It prints a line ``broker HOST:PORT`` for each broker that it was told of,
``retention MS`` as described, ``value V`` for each record, and ``deleted TOPIC``.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest

from tests.demo import broker

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 60
_PASSING = re.compile(
    r"^%\d\|[\d.]+\||\[thrd:[^]]*\]: |\(after \d+ms in state \w+\)|<-\d+|(?<=127\.0\.0\.1):\d+|^[\dA-F]+:error:[\dA-F]+:|(?<='127\.0\.0\.1'), \d+"
)
_MODULE = "org.apache.kafka.common.security"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """Where a client comes in, and as whom."""

    folder: str  # for files of settings
    port: int
    ca: str
    tls: bool = True  # whether it speaks TLS; ``ca`` is whom it trusts
    # certificate, key: of its own; empty for none
    certificate: str = ""
    key: str = ""
    mechanism: str = ""  # of SASL; empty for none
    user: str = ""
    password: str = ""
    token: str = ""
    host: str = "127.0.0.1"  # by which the client is to connect first, and which the certificate must have
    pause_s: float = 0.0  # of ``everything``, after each 100 records of the idempotent producer

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def write(self, name: str, text: str) -> str:
        """Write a file that only its owner may read: its path."""
        path = Path(self.folder) / name
        path.touch(0o600)
        path.write_text(text)
        return str(path)


@dataclasses.dataclass(frozen=True)
class Said:
    """How a client ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def text(self) -> str:
        return self.out + self.err

    def line(self, words: str) -> str:
        """The first that matches, without what differs from run to run: times, ports, names of threads."""
        found = next((line for line in self.text.splitlines() if re.search(words, line)), "")
        return _PASSING.sub("", found).strip()


class Client:
    """One of our own programs around a library; the others overrule ``command``."""

    administers = True  # whether it has administration and transactions; one without cannot do all of ``everything``, and finds the topic made

    def __init__(self, name: str, script: str = "", tools: tuple[str, ...] = (), modules: tuple[str, ...] = ()) -> None:
        self.name = name  # in the table
        # tools, modules: commands and Python's modules that it needs
        self.tools = tools
        self.modules = modules
        self._script = script

    def command(self, verb: str, entry: Entry, topic: str, count: int) -> list[str]:
        """To ``produce`` or ``consume`` so many."""
        return [sys.executable, str(PROGRAMS / self._script), verb, self.settings_file(entry), topic, str(count)]

    def settings_file(self, entry: Entry) -> str:
        return entry.write(f"{self.name}.json", json.dumps(dataclasses.asdict(entry)))

    def produce(self, entry: Entry, topic: str, values: list[str]) -> Said:
        return run(self.command("produce", entry, topic, len(values)), values)

    def consume(self, entry: Entry, topic: str, count: int) -> Said:
        return run(self.command("consume", entry, topic, count), [])

    def everything(self, entry: Entry, topic: str, count: int, prefix: tuple[str, ...] = ()) -> Said:
        """See the module; ``prefix``: a command that runs the client."""
        return run([*prefix, *self.command("everything", entry, topic, count)], [], seconds=2 * SECONDS)


class Kcat(Client):
    """kcat; where its librdkafka was built without curl, as Debian's, the only tokens that it has are those it makes itself, unsigned."""

    administers = False

    def everything(self, entry: Entry, topic: str, count: int, prefix: tuple[str, ...] = ()) -> Said:
        """It has no transactions: the idempotent producer sends all."""
        start = [*prefix, *self.command("list", entry, topic, count)]
        listed = run([*start, "-L", "-J"], [])
        numbers = [str(number) for number in range(2 * count)]
        sent = run([*start, "-P", "-t", topic, "-X", "enable.idempotence=true"], numbers, 100 / entry.pause_s if entry.pause_s else 0)
        consumed = run([*start, "-G", topic, "-X", "auto.offset.reset=earliest", "-e", "-u", "-q", topic], [])
        brokers = [f"broker {node['name']}" for node in json.loads(listed.out)["brokers"]] if listed.code == 0 else []
        out = "\n".join([*brokers, *(f"value {line}" for line in consumed.lines)])
        return Said(listed.code or sent.code or consumed.code, out, listed.err + sent.err + consumed.err)

    def command(self, verb: str, entry: Entry, topic: str, count: int) -> list[str]:
        lines = [f"bootstrap.servers={entry.address}", f"security.protocol={_protocol(entry)}", f"ssl.ca.location={entry.ca}"]
        if entry.certificate:
            lines += [f"ssl.certificate.location={entry.certificate}", f"ssl.key.location={entry.key}"]
        if entry.mechanism:
            lines.append(f"sasl.mechanisms={entry.mechanism}")
        if entry.mechanism == "OAUTHBEARER":
            lines += ["enable.sasl.oauthbearer.unsecure.jwt=true", "sasl.oauthbearer.config=principal=anybody scope=produce"]
        elif entry.mechanism:
            lines += [f"sasl.username={entry.user}", f"sasl.password={entry.password}"]
        settings = entry.write("kcat.conf", "\n".join(lines) + "\n")
        if verb == "list":
            return ["kcat", "-F", settings]
        how = ["-P", "-p", "0"] if verb == "produce" else ["-C", "-p", "0", "-o", "beginning", "-c", str(count), "-u", "-q"]
        return ["kcat", "-F", settings, "-t", topic, *how]


class Java(Client):
    """Kafka's console tools; their tokens come from a file."""

    def command(self, verb: str, entry: Entry, topic: str, count: int) -> list[str]:
        if verb == "everything":
            return [
                *self._java(entry),
                str(PROGRAMS / "Everything.java"),
                self.settings(entry)[1],
                entry.address,
                topic,
                str(count),
                str(entry.pause_s),
            ]
        where = ["--bootstrap-server", entry.address, "--topic", topic, *self.settings(entry)]
        if verb == "produce":
            return self.tool(entry, "ConsoleProducer", *where)
        limits = ["--partition", "0", "--offset", "earliest", "--max-messages", str(count), "--timeout-ms", "20000"]
        return self.tool(entry, "consumer.ConsoleConsumer", *where, *limits)

    def tool(self, entry: Entry, name: str, *words: str) -> list[str]:
        """A tool of Kafka's, which says what it has to say on standard error."""
        return [*self._java(entry), f"org.apache.kafka.tools.{name}", *words]

    def _java(self, entry: Entry) -> list[str]:
        log = entry.write(
            "log4j2.properties",
            "appender.console.type=Console\nappender.console.name=console\nappender.console.target=SYSTEM_ERR\n"
            "appender.console.layout.type=PatternLayout\nappender.console.layout.pattern=%p %m (%c)%n\n"
            "rootLogger.level=warn\nrootLogger.appenderRef.console.ref=console\n",
        )
        allowed = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.{what}" for what in ("urls", "files")]
        options = [f"-Dlog4j2.configurationFile={log}", f"{allowed[0]}={self._token_url(entry)}", f"{allowed[1]}={self._token_url(entry)[7:]}"]
        return broker.java_command(broker.cache_directory(), "-Xms16m", "-Xmx64m", *options)

    def settings(self, entry: Entry) -> list[str]:
        """The option that names the file of settings."""
        lines = [f"security.protocol={_protocol(entry)}", "ssl.truststore.type=PEM", f"ssl.truststore.location={entry.ca}"]
        if entry.certificate:
            both = entry.write("java.pem", Path(entry.key).read_text() + Path(entry.certificate).read_text())
            lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={both}"]
        if entry.mechanism:
            lines.append(f"sasl.mechanism={entry.mechanism}")
        if entry.mechanism == "OAUTHBEARER":
            entry.write("java.token", entry.token)
            lines.append(f"sasl.jaas.config={_MODULE}.oauthbearer.OAuthBearerLoginModule required;")
            lines.append(f"sasl.login.callback.handler.class={_MODULE}.oauthbearer.OAuthBearerLoginCallbackHandler")
            lines.append(f"sasl.oauthbearer.token.endpoint.url={self._token_url(entry)}")
        elif entry.mechanism:
            module = "plain.PlainLoginModule" if entry.mechanism == "PLAIN" else "scram.ScramLoginModule"
            lines.append(f'sasl.jaas.config={_MODULE}.{module} required username="{entry.user}" password="{entry.password}";')
        return ["--command-config", entry.write("java.properties", "\n".join(lines) + "\n")]

    @staticmethod
    def _token_url(entry: Entry) -> str:
        return f"file://{entry.folder}/java.token"


class Built(Client):
    """A program in another language, which is built, or gets its library, in the user's cache. ``build``, ``start``: the commands that build it, and
    start it with a verb as a program of ours; ``{programs}`` is our folder, ``{cache}`` that of the cache.
    """

    _CACHE = broker.cache_directory().parent / "peers"

    def __init__(self, name: str, tools: tuple[str, ...], build: str, start: str) -> None:
        super().__init__(name, tools=tools)
        self._build, self._start = ([word.format(programs=PROGRAMS, cache=self._CACHE) for word in words.split()] for words in (build, start))

    def lacks(self) -> str:
        """Build it, which takes a second when it is up to date: why it cannot be built, or empty."""
        if lacking := [tool for tool in self.tools if shutil.which(tool) is None]:
            return f"needs {' and '.join(lacking)}"
        self._CACHE.mkdir(parents=True, exist_ok=True)
        with (self._CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = subprocess.run(self._build, cwd=self._CACHE, capture_output=True, text=True, check=False)
        return f"{self._build[0]}: {done.stderr.strip()[-500:]}" if done.returncode else ""

    def command(self, verb: str, entry: Entry, topic: str, count: int) -> list[str]:
        return [*self._start, verb, self.settings_file(entry), topic, str(count)]


def _protocol(entry: Entry) -> str:
    return ("SASL_" if entry.mechanism else "") + ("SSL" if entry.tls else "PLAINTEXT")


CLIENTS = {
    client.name: client
    for client in (
        Client("openssl", "openssl_client.py", ("openssl",), ("aiokafka",)),
        Client("confluent-kafka", "confluent_client.py", modules=("confluent_kafka",)),
        Client("kafka-python", "kafka_python_client.py", modules=("kafka",)),
        Client("aiokafka", "aiokafka_client.py", modules=("aiokafka",)),
        Kcat("kcat", tools=("kcat",)),
        Java("java"),
    )
}
_GO = "go build -C {programs}/go -mod=readonly -o {cache}/ ./"
_NODE = "npm install --no-save --no-package-lock --prefix {cache} kafkajs@2.2.4"
BUILT = (
    Built("franz-go", ("go",), f"{_GO}franz", "{cache}/franz"),
    Built("sarama", ("go",), f"{_GO}sarama", "{cache}/sarama"),
    Built("kafkajs", ("node", "npm"), _NODE, "env NODE_PATH={cache}/node_modules node {programs}/kafkajs_client.js"),
)
_EVERY = (*(CLIENTS[name] for name in ("confluent-kafka", "kafka-python", "aiokafka", "kcat")), Java("java", tools=("javac",)), *BUILT)
EVERYTHING = {client.name: client for client in _EVERY}  # those that do everything; kcat what it can


def missing(names: tuple[str, ...], among: Mapping[str, Client] = CLIENTS) -> list[str]:
    """What must be installed for a broker and these clients."""
    clients = [among[name] for name in names]
    tools = [tool for client in clients for tool in client.tools if shutil.which(tool) is None]
    return [*broker.missing_tools(), *tools, *(module for client in clients for module in client.modules if find_spec(module) is None)]


def require(names: tuple[str, ...] = (), among: Mapping[str, Client] = CLIENTS) -> None:
    """Skip the test where a broker or one of these clients is missing; but in continuous integration, which installs them, it fails."""
    lacking = missing(names, among)
    if lacking:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {' and '.join(lacking)}")


def run(command: list[str], lines: list[str], rate: float = 0.0, seconds: float = SECONDS) -> Said:
    """A command to its end.

    Args:
        lines: for its standard input.
        rate: of them a second; 0: all at once.
        seconds: that it may take when it has them all; then it is killed, and its code tells.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err, text=True)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:  # it has ended: its code and words say why
                _feed(process.stdin, lines, rate)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        finally:
            process.kill()
            code = process.wait()
        out.seek(0)
        err.seek(0)
        return Said(code, out.read(), err.read())


def _feed(pipe: IO[str], lines: list[str], rate: float) -> None:
    began = time.monotonic()
    for number, line in enumerate(lines):
        pipe.write(f"{line}\n")
        if rate:
            pipe.flush()
            time.sleep(max(began + (number + 1) / rate - time.monotonic(), 0.0))
