"""Listening sockets: bound with the start of the process, listening once everything else is ready, and gone first at the end.

For other listeners while framegate runs, ``rebound`` binds what is missing before anything else changes; an address that moves from one listener to
another keeps its socket, with the clients that wait in its backlog. An address that overlaps with one that goes (``0.0.0.0:80`` and ``127.0.0.1:80``)
is bound beside it, and listens once the change is decided, before the other socket is closed: no client is refused, or waits in vain.

A listener in front of a Kafka cluster with ``brokers.ports`` has one more for each broker, opened and closed while framegate runs.
"""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence

from framegate.control.accept.resolver import plain
from framegate.control.errors import StartError
from framegate.proxy.config.address import Address, format_sockaddr, parse_address
from framegate.proxy.config.model import ListenerConfig, SocketConfig
from framegate.proxy.network.connection_socket import set_socket_options

BOOTSTRAP = -1  # the broker of a listener's own socket, as in ``Handover.broker``


class Count:
    """Connections through one socket."""

    def __init__(self) -> None:
        self.handed = 0  # given to processors (written by the acceptor's thread)
        self.closed = 0  # of those, the ones that ended (written by the event loop)

    @property
    def open(self) -> int:
        return max(0, self.handed - self.closed)


class ListeningSocket:
    """One bound socket."""

    beside: "Sequence[ListeningSocket]" = ()  # sockets with overlapping addresses, which go when this one is used

    def __init__(self, config: ListenerConfig, address: Address, broker: int, count: Count, sock: socket.socket | None = None) -> None:
        self.config = config  # of its listener
        self._parsed = address
        self.broker = broker  # node id of the broker that it stands for, or ``BOOTSTRAP``
        self.count = count  # its connections
        self.moved = False  # another object has the socket from now on
        self.sock = _bind(config.name, address, config.socket) if sock is None else sock
        self.family = int(self.sock.family)
        self.address = format_sockaddr(self.family, self.sock.getsockname())  # the bound one, as text, port 0 resolved
        self.accepting = False

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def listen(self) -> None:
        """Let clients connect; no effect if they can. Raises StartError."""
        if self.accepting:
            return
        try:
            with shared(self.sock, *(item.sock for item in self.beside)) if self.beside else contextlib.nullcontext():
                self.sock.listen(self.config.backlog)
        except OSError as error:
            raise _bind_error(self.config.name, self.address, error) from error
        self.accepting, self.beside = True, ()

    def close(self) -> None:
        if self.sock.fileno() < 0:
            return
        self.accepting = False
        self.sock.close()
        if self._parsed.kind == "unix" and not self.moved:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._parsed.host)


class Listening(ListeningSocket):
    """One listener: its own socket, and those of brokers."""

    def __init__(self, config: ListenerConfig, counts: dict[int, Count] | None = None, sock: socket.socket | None = None) -> None:
        counts = {BOOTSTRAP: Count()} if counts is None else counts
        super().__init__(config, parse_address(config.address, port_zero=True), BOOTSTRAP, counts[BOOTSTRAP], sock)
        self.brokers: dict[int, ListeningSocket] = {}  # open sockets, by node id. Event loop only.
        self.counts = counts  # of the listener's own socket and of brokers that have, or had, one. Changed by the event loop only.

    def configure(self, config: ListenerConfig) -> None:
        """Have another configuration with the same address. A socket that a drain has closed stays closed."""
        for item in (self, *self.brokers.values()):
            was, item.config = item.config, config
            if item.sock.fileno() < 0:
                continue
            if was.socket != config.socket and item.family != socket.AF_UNIX:
                set_socket_options(item.sock, config.socket)
            if was.backlog != config.backlog and item.accepting:
                item.sock.listen(config.backlog)

    @property
    def handed(self) -> int:
        """Connections given to processors."""
        return sum(count.handed for count in self.counts.values())

    @property
    def open(self) -> int:
        return sum(count.open for count in self.counts.values())

    def count_of(self, broker: int) -> Count:
        """The connections of a broker's socket, or of the listener's own if the broker has never had one."""
        return self.counts.get(broker, self.count)

    def open_broker(self, broker: int, port: int) -> ListeningSocket:
        """Bind another port of the same address for a broker, and listen. Raises StartError."""
        count = self.counts.get(broker) or Count()
        opened = ListeningSocket(self.config, parse_address(self.address, port_zero=True)._replace(port=port), broker, count)
        try:
            opened.listen()
        except StartError:
            opened.close()
            raise
        self.counts[broker] = count
        self.brokers[broker] = opened
        return opened

    def forget(self, broker: int) -> None:
        """Drop the count of a broker that has no socket and no connection any more."""
        if broker not in self.brokers and broker in self.counts and not self.counts[broker].open:
            del self.counts[broker]

    def close(self) -> None:
        super().close()
        for opened in self.brokers.values():
            opened.close()


def rebound(before: Mapping[str, Listening], leaving: Mapping[str, Listening], listeners: Sequence[ListenerConfig]) -> dict[str, Listening]:
    """The listeners of another configuration, in its order: those with the same address are the same objects, others listen already, except beside an
    address that overlaps. ``leaving``: those that are gone but have connections: one of the same name goes on with their counts. Raises StartError:
    an address cannot be used; nothing is bound then.
    """
    wanted = {item.name: item.address for item in listeners}
    gone = [item for name, item in before.items() if wanted.get(name) != item.config.address]
    free = {address: item for item in gone for address in (item.address, item.config.address)}
    made: dict[str, Listening] = {}
    with contextlib.ExitStack() as undo:
        for config in listeners:
            was = before.get(config.name)
            if was is not None and was.config.address == config.address:
                made[config.name] = was
                continue
            counted = was or leaving.get(config.name)
            given = free.get(str(parse_address(config.address, port_zero=True)), free.get(config.address))
            free = {address: item for address, item in free.items() if item is not given}  # port 0 may be wanted by several
            counts, parsed = None if counted is None else counted.counts, parse_address(config.address, port_zero=True)
            beside = [item for item in gone if item is not given and item.family != socket.AF_UNIX and item.port == parsed.port]
            with shared(*(item.sock for item in beside)):
                sock = given.sock.dup() if given is not None else _bind(config.name, parsed, config.socket, share=True) if beside else None
            made[config.name] = fresh = Listening(config, counts, sock)
            undo.callback(fresh.close)
            fresh.moved = given is not None  # until it is used: then the socket's file is not removed
            if given is not None and fresh.family != socket.AF_UNIX:
                set_socket_options(fresh.sock, config.socket)
            if given is None and beside:
                fresh.beside = beside
            else:
                fresh.listen()
        undo.pop_all()
    return made


@contextlib.contextmanager
def shared(*socks: socket.socket) -> Iterator[None]:
    """Let open sockets have addresses that overlap with those of other sockets of this process."""
    still_open = [sock for sock in socks if sock.fileno() >= 0]
    for sock in still_open:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        yield
    finally:
        for sock in still_open:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)


def _bind_error(name: str, address: str, error: OSError) -> StartError:
    return StartError(
        f"listener {name} cannot bind {address}: {error.strerror or error}", reason="LISTENER_ADDRESS_UNUSABLE", listener=name, address=address
    )


def _bind(name: str, address: Address, options: SocketConfig, *, share: bool = False) -> socket.socket:
    if address.kind == "unix":
        return _bind_unix(name, address)
    try:
        family, _, _, _, sockaddr = socket.getaddrinfo(plain(address.host), address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise _bind_error(name, str(address), error) from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # of what is accepted, too: once here instead of for each connection
        set_socket_options(sock, options)  # likewise
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setblocking(False)
        with shared(sock) if share else contextlib.nullcontext():
            sock.bind(sockaddr)
    except OSError as error:
        sock.close()
        raise _bind_error(name, str(address), error) from error
    return sock


def _bind_unix(name: str, address: Address) -> socket.socket:
    path = address.host
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _remove_stale(name, path)
        sock.setblocking(False)
        sock.bind(path)
    except OSError as error:
        sock.close()
        raise _bind_error(name, str(address), error) from error
    except StartError:
        sock.close()
        raise
    return sock


def _remove_stale(name: str, path: str) -> None:
    """Remove a Unix socket without a listener; any other file at its path stays and is an error."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(errno.EEXIST, "a file that is not a socket exists at this path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise StartError(f"listener {name}: another process listens on {path}", reason="LISTENER_ADDRESS_IN_USE", listener=name, address=f"unix:{path}")
