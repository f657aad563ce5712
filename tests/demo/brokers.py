"""A cluster of real Apache Kafka brokers, and a watch for connections to them.

The brokers have loopback addresses of their own, so that a connection to one of them can be told from every other connection, and they advertise
themselves.
"""

import contextlib
import functools
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from tests.demo.broker import Broker, prepare

_SETTINGS: Final = """offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.state.log.num.partitions=3
default.replication.factor=3
min.insync.replicas=2
broker.session.timeout.ms=5000
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms=4000
"""
_HEAP: Final = ("-Xms32m", "-Xmx64m")
_LOOK_S: Final = 0.05


class Cluster:
    """Several brokers, the first of which is the controller too. Node N listens on 127.0.1.N, advertises itself, and is in the rack ``rack-N``.

    Topics have 3 replicas, and 2 of them must be in sync; a broker without a sign of life for 5 s is taken for dead.

    Args:
        directory: has a folder for each node.
        nodes: their ids, from 1 to 254.
        users, listeners, settings, options: as of ``Broker``, for each of them.
    """

    def __init__(
        self,
        directory: Path,
        users: Mapping[str, str] | None = None,
        *,
        nodes: Sequence[int] = (1, 2, 3),
        listeners: Mapping[str, str] | None = None,
        settings: str = "",
        options: Sequence[str] = (),
    ) -> None:
        self._new = functools.partial(Broker, users=users, listeners=listeners, options=(*_HEAP, *options))
        self._directory, self._settings = directory, settings
        self.brokers: dict[int, Broker] = {}
        for node in nodes:
            self._make(node)

    def bootstrap(self, listener: str) -> list[str]:
        """The addresses of a listener, ``INTERNAL`` for those past the proxy."""
        return [f"{broker.host}:{broker.ports[listener]}" for broker in self.brokers.values()]

    def start(self, timeout_s: float = 60.0) -> None:
        """Start all and wait until each knows all; raises BrokerError as a single broker's ``start``."""
        prepare()
        for broker in self.brokers.values():
            broker.launch({})
        for broker in self.brokers.values():
            broker.wait(len(self.brokers), timeout_s)

    def kill(self, node: int) -> None:
        """End one with SIGKILL."""
        self.brokers[node].kill()

    def restart(self, node: int, *, moved: bool = False) -> None:
        """Start one again that was killed, on other ports for clients when it is ``moved``, and wait until it is back."""
        if moved:
            self.brokers[node].move()
        self.brokers[node].start({}, 60.0)

    def add(self, node: int) -> Broker:
        """Start one more, which joins within seconds. The thread that calls this must live on: Linux ends a broker with it."""
        added = self._make(node)
        added.launch({})
        return added

    def stop(self) -> None:
        """End all at once; the data is of no more use."""
        for broker in self.brokers.values():
            broker.kill()
            broker.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make(self, node: int) -> Broker:
        first = next(iter(self.brokers.values()), None)
        settings = f"{_SETTINGS}broker.rack=rack-{node}\n{self._settings}"
        made = self._new(self._directory / f"node-{node}", settings=settings, node=node, host=f"127.0.1.{node}", controller=first)
        self.brokers[node] = made
        return made


class Watch:
    """Looks at the machine's connections to the brokers' listeners for clients every 50 ms, as ``ss`` does. ``cluster``: whose brokers are watched,
    also those added and those that move. ``parent``: the id of the process that may connect, and its children may; 0: none. The brokers may, too.
    """

    def __init__(self, cluster: Cluster, parent: int) -> None:
        self.leaks: list[str] = []  # who else has connected: process, its command, and both addresses
        self.seen: set[tuple[str, int]] = set()  # the addresses of brokers to which a process that may had a connection
        self._cluster = cluster
        self._parent = parent
        self._watched: set[tuple[str, int]] = set()
        self._known: set[tuple[tuple[str, int], str]] = set()
        self._done = threading.Event()
        self._executor = ThreadPoolExecutor(1, "watch")

    def look(self) -> None:
        """Look once."""
        brokers = list(self._cluster.brokers.values())
        self._watched |= {address for broker in brokers for address in broker.client_addresses.values()}
        found = {(local, inode): remote for local, remote, inode in _connections() if remote in self._watched and inode != "0"}
        fresh = found.keys() - self._known
        self._known &= found.keys()
        if fresh:
            good = {inode for pid in (*_family(self._parent), *(broker.pid for broker in brokers)) for inode in _sockets(pid)}
            for local, inode in fresh:
                owner = None if inode in good else _owner(inode)
                if owner is not None:
                    self.leaks.append(f"{owner} {local[0]}:{local[1]} -> {found[local, inode][0]}:{found[local, inode][1]}")
                elif inode in good:
                    self.seen.add(found[local, inode])
                else:
                    continue  # it has just been closed, or is looked at again
                self._known.add((local, inode))

    def _run(self) -> None:
        while not self._done.wait(_LOOK_S):
            self.look()

    def __enter__(self) -> Self:
        self._running = self._executor.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._executor.shutdown()
        self._running.result()  # raises what ended it early: it would have seen nothing more
        self.look()


def _connections() -> list[tuple[tuple[str, int], tuple[str, int], str]]:
    """The TCP connections that the system knows: local address, remote address, and the inode of the socket; 0: no process has it."""
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [(_address(row[1]), _address(row[2]), row[9]) for row in rows]


def _address(text: str) -> tuple[str, int]:
    """Of IPv4, also where it stands in one of IPv6, as Java's sockets have it."""
    host, _, port = text.partition(":")
    return socket.inet_ntoa(int(host[-8:], 16).to_bytes(4, sys.byteorder)), int(port, 16)


def _family(pid: int) -> list[int]:
    """A process and its children."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return found


def _sockets(pid: int) -> set[str]:
    """The inodes of a process' sockets; none when it is gone."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}").removeprefix("socket:[").removesuffix("]"))
    return found


def _owner(inode: str) -> str | None:
    """The process that has a socket: its id and command; None when it has just been closed."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        if inode in _sockets(int(name)):
            with contextlib.suppress(OSError):
                return f"{name} ({Path(f'/proc/{name}/cmdline').read_text().replace(chr(0), ' ').strip()})"
    return None
