"""The sockets of the API: one Unix socket for each role, with mode and group, and TCP with mutual TLS.

A process that serves a path first locks the file ``<path>.lock`` beside the socket; the kernel releases the lock when the process ends for any
reason. So a socket file that exists is one left behind, and is replaced. It has its mode and group before it listens.
"""

import asyncio
import contextlib
import fcntl
import functools
import grp
import logging
import os
import pathlib
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from framegate.control.errors import StartError
from framegate.control.files import Contents, FileError, digest, read
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.source import Refusal, Reloader, Source
from framegate.control.rotation.tls_stores import Judge
from framegate.control.service.peers import ROLES, Peer, Peers, unix_peer
from framegate.control.service.relay import Path, Relay
from framegate.control.web import bind
from framegate.proxy.config.address import MAX_UNIX_PATH_BYTES, format_sockaddr
from framegate.proxy.config.model import AdminConfig, AdminTcp, RoleSocket
from framegate.proxy.config.tls import ListenerTls
from framegate.proxy.errors import ConfigError

if TYPE_CHECKING:
    import ssl

    from framegate.control.service.certificate_peers import CertificatePeers

_UNIX: Final = "unix:"
_BACKLOG: Final = 128
_OTHERS: Final = 0o077
_TCP: Final = "admin/tcp"  # the owner of its certificates
_KIND: Final = "tls"
_TRIES: Final = 3
_log = logging.getLogger(__name__)


class Sockets:
    """The sockets of a configuration. They are bound at once; connections are accepted from ``serve`` on.

    Attributes:
        folder: of the socket of the role admin.
        tcp_address: ``host:port`` with the port bound, or None.

    Raises StartError: another instance serves a socket, or an address, file or group cannot be used.
    """

    def __init__(self, config: AdminConfig) -> None:
        self._unix: list[tuple[str, socket.socket]] = []
        self._tcp: tuple[socket.socket, _Renewed, CertificatePeers] | None = None
        self._relays: list[Relay] = []
        with contextlib.ExitStack() as stack:
            paths = {role: _socket_path(item.address) for role, item in config.sockets.items()}
            mode = 0o711 if any(int(item.mode, 8) & _OTHERS for item in config.sockets.values()) else 0o700
            for role, path in paths.items():
                _make_folder(path, mode)
                stack.callback(_lock(path))
                sock = stack.enter_context(_unix_socket(path, config.sockets[role]))
                stack.callback(path.unlink, missing_ok=True)
                self._unix.append((role, sock))
            self.tcp_address: str | None = None
            if config.tcp is not None:
                renewed, peers = _Renewed(config.tcp), _certificate_peers(config.tcp)
                sock = stack.enter_context(_tcp_socket(config.tcp.address))
                self.tcp_address = format_sockaddr(sock.family, sock.getsockname())
                self._tcp = sock, renewed, peers
            self.folder = paths["admin"].parent
            self._release = stack.pop_all().close

    def serve(self, backend: Path, peers: Peers, rotation: Rotation, ask: Judge) -> None:
        """Pass the connections of all sockets to gRPC's."""
        for role, sock in self._unix:
            self._relays.append(Relay(sock, backend, peers, functools.partial(unix_peer, ROLES[role])))
        if self._tcp is not None:
            sock, renewed, certificates = self._tcp

            async def known(client: socket.socket, transport: asyncio.Transport) -> Peer:
                return certificates.peer(transport.get_extra_info("ssl_object"), format_sockaddr(client.family, client.getpeername()))

            relay = Relay(sock, backend, peers, known, lambda: renewed.context)
            self._relays.append(relay)
            renewed.watch(rotation, relay, ask)

    async def stop_accepting(self) -> None:
        for relay in self._relays:
            await relay.stop()

    async def close(self) -> None:
        """Close all connections and sockets, remove the files and release the locks."""
        try:
            for relay in self._relays:
                await relay.close()
        finally:
            self._release()


class _Renewed(Reloader):
    """The context of TLS, made again when one of its files was replaced; a broken one is reported, and the last good one goes on.

    When authorities or revocation lists were replaced, the connections are closed whose clients would not be accepted any more.

    Attributes:
        context: for the next connection.

    Raises StartError: the files cannot be used.
    """

    def __init__(self, config: AdminTcp) -> None:
        self._tls = config.tls
        self._judges = (config.client_ca, *config.crl)
        self._paths = tuple(dict.fromkeys((config.certificate, config.key, *self._judges)))
        found: dict[str, bytes] | FileError | None = None
        for _ in range(_TRIES):
            found = found or read(self._paths)
        try:
            if not isinstance(found, dict):
                raise found or FileError(config.certificate, "is being replaced")
            self._contents: Contents = found
            self.context = _context(self._tls, found)
        except (ConfigError, FileError) as error:
            raise StartError(str(error), reason="ADMIN_TLS_UNUSABLE", address=config.address) from error

    def watch(self, rotation: Rotation, relay: Relay, ask: Judge) -> None:
        """Follow the files from now on. ``relay`` has the connections; ``ask``: as of ``Sockets``."""
        self._relay, self._ask = relay, ask
        rotation.watch(Source(owner=_TCP, kind=_KIND, paths=self._paths, reloader=self, in_force=digest(self._contents)))

    async def take(self, found: Mapping[str, Contents]) -> dict[str, Refusal]:
        contents = found[_TCP]
        try:
            self.context = await asyncio.to_thread(_context, self._tls, contents)
        except ConfigError as error:
            return {_TCP: Refusal("", str(error))}
        before, self._contents = self._contents, contents
        if any(before[path] != contents[path] for path in self._judges):
            await self._end_refused(contents)
        return {}

    async def _end_refused(self, contents: Contents) -> None:
        """Close the connections whose clients are not trusted or revoked now, and those whose handshake goes on with the former files. If that cannot
        be found out, all are closed: clients that are still trusted connect again.
        """
        connections = dict(self._relay.connections)
        known = [(task, peer) for task, peer in connections.items() if peer is not None]
        await self._relay.end(connections.keys() - dict(known).keys())
        authorities, *lists = (contents[path].decode("latin-1") for path in self._judges)
        chains = [[certificate.hex() for certificate in peer.chain] for _, peer in known]
        try:
            answer = await self._ask({"clients": {"chains": chains, "authorities": authorities, "lists": lists}})
            refused = answer["refused"]
        except (OSError, RuntimeError, TimeoutError):
            _log.exception("open connections could not be judged by the new certificates; all are closed")
            refused = range(len(known))
        await self._relay.end(known[index][0] for index in refused)


def _context(tls: ListenerTls, contents: Contents) -> "ssl.SSLContext":
    """Raises ConfigError. Takes milliseconds; any thread."""
    from framegate.proxy.network.tls_context import server_store  # here: it loads OpenSSL

    return server_store(tls, contents).default


def _certificate_peers(config: AdminTcp) -> "CertificatePeers":
    from framegate.control.service.certificate_peers import CertificatePeers
    from framegate.proxy.auth.mapping_rules import RuleError

    try:
        return CertificatePeers(config)
    except RuleError as error:
        raise StartError(f"admin.tcp: {error}", reason="ADMIN_TLS_UNUSABLE", address=config.address) from error


def _socket_path(address: str) -> pathlib.Path:
    """The absolute path of ``unix:PATH``."""
    path = pathlib.Path(address.removeprefix(_UNIX)).absolute()
    if not address.startswith(_UNIX) or len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
        text = f"the admin address must be unix: and a path of at most {MAX_UNIX_PATH_BYTES} bytes, not {address}"
        raise StartError(text, reason="ADMIN_ADDRESS_UNUSABLE", address=address)
    return path


def _make_folder(path: pathlib.Path, mode: int) -> None:
    try:
        path.parent.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: pathlib.Path, error: Exception) -> StartError:
    return StartError(f"the admin socket {path} cannot be made: {error}", reason="ADMIN_ADDRESS_UNUSABLE", address=f"{_UNIX}{path}")


def _lock(path: pathlib.Path) -> Callable[[], None]:
    """Lock a socket's path; returns the function that unlocks it. The file stays: without it two processes could lock two different files."""
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StartError(f"another framegate serves the admin socket {path}", reason="ADMIN_ADDRESS_IN_USE", address=f"{_UNIX}{path}") from error
    return lambda: os.close(descriptor)


def _unix_socket(path: pathlib.Path, config: RoleSocket) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        if path.exists() and not path.is_socket():
            raise FileExistsError("a file that is not a socket exists at this path")
        path.unlink(missing_ok=True)
        sock.setblocking(False)
        sock.bind(str(path))
        if config.group:
            os.chown(path, -1, int(config.group) if config.group.isdecimal() else grp.getgrnam(config.group).gr_gid)
        os.chmod(path, int(config.mode, 8))
        sock.listen(_BACKLOG)
    except (OSError, KeyError) as error:
        sock.close()
        raise _unusable(path, error) from error
    finally:
        os.umask(before)
    return sock


def _tcp_socket(address: str) -> socket.socket:
    try:
        sock = bind(address)
    except OSError as error:
        text = f"the admin API cannot listen on {address}: {error.strerror or error}"
        raise StartError(text, reason="ADMIN_ADDRESS_UNUSABLE", address=address) from error
    sock.setblocking(False)
    return sock
