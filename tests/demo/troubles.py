"""The troubles of ``make dashboards``: how each is made, what the first dashboard must say of it, and where; its alert is the one of these words."""

import contextlib
import datetime
import functools
import itertools
import os
import resource
import signal
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from socket import create_connection
from typing import Any, Final, NamedTuple

from framegate.control.steering.alerts import ALERTS, Alert
from tests.demo.clients import KEEP, PRODUCE, ask, call_kafka, frame, kafka_request, log_in, repeating
from tests.demo.environment import LOGINS, MIB, ORDERS, PARTNERS, USER, Node
from tests.fakes.certificates import Authority
from tests.fakes.small_disk import fill

_WAIT_S: Final = 0.2
_HOLDERS: Final = 8
_HELD: Final = 700 * 1024
_LARGE: Final = 64 * 1024
_THROTTLED_US: Final = 4_000  # of each 100 ms
_ENDING: Final = datetime.timedelta(days=-87), datetime.timedelta(days=3, hours=-1)
_SLOW_S: Final = 2.0
_GROUPS: Final = Path("/sys/fs/cgroup")


class Trouble(NamedTuple):
    name: str  # part of its pictures' names
    title: str  # what is done
    words: str  # what the first dashboard must say
    places: tuple[str, ...]  # each must be in a place that its table shows for these words; ``{broker}`` is a port of a server that is gone
    going: Callable[[Node], AbstractContextManager[object]]  # makes it for the length of its block
    lasts: bool = True  # it can be seen as long as it goes on; otherwise only at its beginning
    besides: tuple[str, ...] = ()  # alerts that page too, rightly
    by_alert_alone: bool = False  # it is compared with an hour ago, which only the shortened rules of this run have

    @property
    def alert(self) -> Alert:
        """The most severe alert with these words."""
        return next(alert for alert in ALERTS if any(problem.words == self.words for problem in alert.problems))

    def impossible(self, node: Node) -> str:
        """Why it cannot be made here; empty: it can."""
        if self.going in (_full_tap, _filling_tap) and node.disk is None:
            return "a small disk cannot be mounted here (needs root)"
        return "a cgroup for CPU time cannot be made here" if self.going is _throttled and _cpu_group() is None else ""


# --- what is behind ----------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """The process stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _stopped_upstream(node: Node) -> AbstractContextManager[object]:
    """50 clients wait, as long as Kafka's do."""
    return _both(_stopped(node.backend.pid), repeating(functools.partial(call_kafka, node.address(ORDERS), patience_s=40.0), 50))


def _stopped_echo(node: Node) -> AbstractContextManager[object]:
    """Of a protocol that framegate does not know."""

    def ask(over: threading.Event) -> None:
        with node.connect(PARTNERS) as connection:
            connection.sendall(frame(b"still there?"))
            over.wait(60.0)

    return _both(_stopped(node.backend.pid), repeating(ask, 5))


def _unresolvable(node: Node) -> AbstractContextManager[object]:
    def change(document: dict[str, Any]) -> None:
        document["upstreams"][1]["endpoints"] = ["kafka.example.invalid:9092"]

    return node.configured(change)


# --- what clients do ---------------------------------------------------------------------------------------------------------------------


def _slow_consumers(node: Node) -> AbstractContextManager[object]:
    """They send, and do not read the answers."""

    def send(over: threading.Event) -> None:
        with node.connect() as connection:
            connection.settimeout(_WAIT_S)
            data = struct.pack(">i", _LARGE) + bytes(_LARGE)
            position = 0
            while not over.is_set():
                with contextlib.suppress(TimeoutError, ssl.SSLWantWriteError):
                    position = (position + connection.send(data[position:])) % len(data)

    return repeating(send, 6)


def _oversized(node: Node) -> AbstractContextManager[object]:
    def send(_over: threading.Event) -> None:
        with node.connect() as connection:
            connection.sendall(struct.pack(">i", 5 * MIB) + bytes(1024))
            connection.recv(1)

    return repeating(send)


def _strangers(node: Node) -> AbstractContextManager[object]:
    def send(_over: threading.Event) -> None:
        with node.connect(PARTNERS, stranger=True) as connection:
            connection.recv(1)  # with TLS 1.3 the refusal comes after the handshake

    return repeating(send)


@contextlib.contextmanager
def _holders(node: Node) -> Iterator[None]:
    """The processor has a pool of 1 MiB, and clients begin frames of 1 MiB and stop."""
    limit, pool = node.steering.limit(), node.steering.pool()

    def hold(over: threading.Event) -> None:
        with node.connect() as connection:
            connection.sendall(struct.pack(">i", MIB - 16) + bytes(_HELD))
            connection.settimeout(_WAIT_S)
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(1):
                        return  # evicted, because other connections wait for the memory that it holds

    def smaller(document: dict[str, Any]) -> None:
        document["memory_pool"] = {"size": MIB * len(pool.shares)}
        for listener in document["listeners"]:
            listener["max_receive_size"] = min(limit, MIB)

    with node.configured(smaller), repeating(hold, _HOLDERS):
        yield


def _quota(node: Node) -> AbstractContextManager[object]:
    """Six clients share three requests a second."""

    def change(document: dict[str, Any]) -> None:
        document["listeners"][2]["limits"] = {"request_frames_rate": 3}

    return _both(node.configured(change), repeating(functools.partial(call_kafka, node.address(ORDERS)), 4))


def _noisy(node: Node) -> AbstractContextManager[object]:
    """One of 51 clients sends 200 KB twenty times a second, the others a request a second."""

    def shout(over: threading.Event) -> None:
        with create_connection(node.address(ORDERS), 5.0) as connection:
            while not over.wait(0.05):
                ask(connection, kafka_request(0, 7, PRODUCE + bytes(200_000), client_id=b"noisy"))

    calm = (functools.partial(call_kafka, node.address(ORDERS), pause_s=1.0, client_id=b"calm-%d" % number) for number in range(50))
    return _both(*map(repeating, calm), repeating(shout))


def _guessing(*users: str) -> Callable[[Node], AbstractContextManager[object]]:
    """One password after another for these users."""
    numbers = itertools.count()

    def guess(node: Node) -> AbstractContextManager[object]:
        def attempt(_over: threading.Event) -> None:
            log_in(node.address(LOGINS), users[next(numbers) % len(users)], "wrong")

        return repeating(attempt)

    return guess


def _storm(node: Node) -> AbstractContextManager[object]:
    def come(over: threading.Event) -> None:
        while not over.wait(0.02):
            create_connection(node.address(ORDERS), 5.0).close()

    return repeating(come, 3)


# --- framegate and its machine -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _full_tap(node: Node) -> Iterator[None]:
    """The tap's disk is filled again and again, because framegate makes room by its budget."""
    assert node.disk is not None, "it is impossible otherwise"
    filler = node.disk / "filler"
    try:
        with repeating(lambda _over: fill(filler)):
            yield
    finally:
        filler.unlink(missing_ok=True)


@contextlib.contextmanager
def _filling_tap(node: Node) -> Iterator[None]:
    """By 200 KiB each second."""
    assert node.disk is not None, "it is impossible otherwise"
    filler = node.disk / "filler"

    def write(_over: threading.Event) -> None:
        with filler.open("ab") as file:
            file.write(bytes(40 * 1024))

    try:
        with repeating(write):
            yield
    finally:
        filler.unlink(missing_ok=True)


@contextlib.contextmanager
def _killed_processor(node: Node) -> Iterator[None]:
    """It gets SIGKILL, as the kernel sends it when memory is short."""
    os.kill(node.steering.processor_pids()[0], signal.SIGKILL)
    yield


def _cpu_group() -> Path | None:
    """A folder below which groups with a quota of CPU time can be made, of both versions."""
    old, new = _GROUPS / "cpu", _GROUPS / "cgroup.subtree_control"
    if (old / "cpu.cfs_quota_us").exists():
        return old if os.access(old, os.W_OK) else None
    return _GROUPS if new.exists() and "cpu" in new.read_text().split() and os.access(new, os.W_OK) else None


@contextlib.contextmanager
def _throttled(node: Node) -> Iterator[None]:
    """The framegate gets a twenty-fifth of a CPU."""
    root = _cpu_group()
    assert root is not None, "it is impossible otherwise"
    group = root / f"framegate-{os.getpid()}-{node.name}"
    group.mkdir()
    try:
        old = (group / "cpu.cfs_quota_us").exists()
        (group / ("cpu.cfs_quota_us" if old else "cpu.max")).write_text(f"{_THROTTLED_US}" if old else f"{_THROTTLED_US} 100000")
        _move(node, group)
        yield
    finally:
        _move(node, root)
        for _ in range(50):
            with contextlib.suppress(OSError):  # a process that has ended is in it until it is reaped
                group.rmdir()
                break
            time.sleep(0.1)


def _move(node: Node, group: Path) -> None:
    for pid in node.processes():
        with contextlib.suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(str(pid))


def _expiring(node: Node) -> AbstractContextManager[object]:
    """One more listener, whose certificate of 90 days expires in three."""
    (node.root / "expiring").mkdir()
    certificate, key = Authority(node.root / "expiring").leaf("server", lifetime=_ENDING)

    def change(document: dict[str, Any]) -> None:
        listener = dict(document["listeners"][0], name="expiring", address="127.0.0.1:0")
        document["listeners"].append({**listener, "tls": {"certificate": certificate, "key": key}})

    return node.configured(change)


def _leak(node: Node) -> AbstractContextManager[object]:
    """A handler that keeps 2 MiB each second."""
    return repeating(lambda _over: node.ask_handler(KEEP + os.urandom(MIB)), pause_s=0.5)


@contextlib.contextmanager
def _few_descriptors(node: Node) -> Iterator[None]:
    """The processor has 100 more connections, and may have few more."""
    pid = node.steering.processor_pids()[0]
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as undo:
        for _ in range(100):
            undo.enter_context(create_connection(node.address(ORDERS), 5.0))
        time.sleep(1.0)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) * 21 // 20, hard))
        undo.callback(resource.prlimit, pid, resource.RLIMIT_NOFILE, (soft, hard))
        yield


@contextlib.contextmanager
def _both(*parts: AbstractContextManager[object]) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        for part in parts:
            undo.enter_context(part)
        yield


TROUBLES: Final = (
    Trouble("stopped-upstream", "an upstream is stopped, 50 clients wait", "Requests wait long for their answer", (ORDERS,), _stopped_upstream),
    Trouble(
        "stopped-echo",
        "an upstream of another protocol is stopped",
        "Most clients of an endpoint give up before it answers",
        ("framed",),
        _stopped_echo,
    ),
    Trouble("filling-tap", "the tap's disk fills slowly", "The tap's disk will be full within six hours", (), _filling_tap),
    Trouble(
        "slow-api",
        "the brokers take 2 s for each Produce",
        "Kafka requests take longer than 1 s",
        (f"{ORDERS} Produce",),
        lambda node: node.backend_told(slow={"0": _SLOW_S}),
    ),
    Trouble("noisy", "a noisy client among 50", "One client has more than half of a listener's bytes", (ORDERS, "noisy", "127.0.0.1"), _noisy),
    Trouble(
        "guess-one", "passwords of one user are tried", "Logins of one user fail, from one address", (LOGINS, USER, "127.0.0.1"), _guessing(USER)
    ),
    Trouble(
        "guess-many",
        "passwords of many users are tried",
        "Logins of many users fail, from one address",
        (LOGINS, "<many>", "127.0.0.1"),
        _guessing(*map("user-{}".format, range(100))),
    ),
    Trouble("quota", "six clients share 3 requests a second", "A quota holds back most clients", (ORDERS,), _quota),
    Trouble("slow-consumers", "6 clients send and never read", "Peers do not take what is sent to them", (), _slow_consumers),
    Trouble("throttled", "framegate has a twenty-fifth of a CPU", "The container is throttled", (), _throttled),
    Trouble("unresolvable", "an upstream's name is unknown", "The names of an upstream are not resolved", ("orders",), _unresolvable),
    Trouble(
        "half-gone",
        "two of four brokers refuse connections",
        "Half of an upstream's endpoints are left out",
        ("orders",),
        lambda node: node.backend_told(closed=node.brokers[:2]),
    ),
    Trouble(
        "all-gone",
        "all brokers refuse connections",
        "No endpoint of an upstream can be reached",
        ("orders",),
        lambda node: node.backend_told(closed=node.brokers),
    ),
    Trouble("expiring", "a certificate three days from its end", "A certificate ends very soon", ("listener/expiring",), _expiring),
    Trouble("leak", "a handler keeps what it is given", "The memory of a handler process grows", ("handler-0",), _leak),
    Trouble("storm", "150 connections a second", "Far more connections come than an hour ago", (ORDERS,), _storm, by_alert_alone=True),
    Trouble("descriptors", "a processor has nearly all of its descriptors", "Descriptors are nearly used up", ("processor-0",), _few_descriptors),
    Trouble("oversized-frames", "frames of 5 MiB, where 4 MiB are allowed", "Frames of clients are refused", ("demo frame_too_large",), _oversized),
    Trouble(
        "strangers",
        "certificates of an unknown authority",
        "Clients fail at the handshake, or speak another protocol",
        (f"{PARTNERS} tls_failed",),
        _strangers,
    ),
    Trouble("pool-exhausted", "clients that hold all of a small memory pool", "Clients wait for memory", (), _holders),
    Trouble("full-tap", "the tap's disk is full", "The tap loses frames", ("disk_full",), _full_tap),
    Trouble("killed-processor", "a processor is killed", "A processor was started again", (), _killed_processor, lasts=False),
)  # the longest first
