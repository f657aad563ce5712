"""The callers of the API, with their roles: what the kernel says about the process at the other end of a Unix socket (TCP: ``certificate_peers``)."""

import asyncio
import contextlib
import math
import os
import pwd
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from framegate.control.accept.resolver import in_thread
from framegate.control.events import Row

ROLES: Final = {"admin": 3, "operate": 2, "view": 1}  # the numbers of ``v1.Role`` by the configuration's words, the highest first
NO_ROLE: Final = 0
_WORDS: Final = {number: word for word, number in ROLES.items()}
_CREDENTIALS: Final = struct.Struct("3i")  # ``struct ucred``: pid, uid, gid
_NAME_S: Final = 0.5  # for how long a directory service may be asked for the name of a user
_MAX_NAMES: Final = 1_024


class Peer(NamedTuple):
    """A caller."""

    role: int  # of ``ROLES``; ``NO_ROLE``: each of its calls is refused
    fields: Row  # of its audit rows: who, and uid, gid and pid, or the certificate and the address
    local: bool = True  # whether it is a process of this machine
    ends_s: float = math.inf  # when its certificate ends, and with it the connection; since 1970
    chain: tuple[bytes, ...] = ()  # its certificate and those above it, to the authority, in DER form; of a resumed session its certificate alone


class _Connection:
    def __init__(self, peer: Peer, hold: Callable[[bool], None]) -> None:
        self.peer = peer
        self.hold = hold
        self.refusals = 0


class Peers:
    """The callers of the open connections, by the name that gRPC has for a connection: ``ServicerContext.peer()``."""

    def __init__(self) -> None:
        self._connections: dict[str, _Connection] = {}

    def add(self, peer: Peer, hold: Callable[[bool], None] = lambda held: None) -> str:
        """Add a caller; returns the name in the abstract namespace that the connection to gRPC's socket must have. No name is used twice. ``hold``:
        stops reading from the connection, and begins again.
        """
        name = os.urandom(16).hex()
        self._connections[name] = _Connection(peer, hold)
        return name

    def remove(self, name: str) -> None:
        """Its connection has ended."""
        del self._connections[name]

    def _find(self, name: str) -> _Connection | None:
        return self._connections.get(name.removeprefix("unix-abstract:"))

    def find(self, name: str) -> Peer | None:
        """The caller of a call."""
        connection = self._find(name)
        return None if connection is None else connection.peer

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """While a refusal waits, nothing is read from its connection: further calls, and their cancellations, take no time here."""
        connection = self._find(name)
        if connection is None:
            yield
            return
        connection.refusals += 1
        connection.hold(True)
        try:
            yield
        finally:
            connection.refusals -= 1
            connection.hold(connection.refusals > 0)


def role_name(role: int) -> str:
    """The configuration's word for a role."""
    return _WORDS.get(role, "unspecified")


_names: dict[int, str] = {}
_asked: set[int] = set()


async def unix_peer(role: int, sock: socket.socket, transport: asyncio.Transport) -> Peer:
    """The process that connected, as the kernel noted it then. Its number is 0 if it is in another container. ``who`` is the name of its user, or the
    number if there is no name, as in containers, or the directory service does not say it in time.
    """
    del transport
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if uid not in _names and uid not in _asked and len(_asked) < _MAX_NAMES:
        _asked.add(uid)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NAME_S):
                await in_thread(lambda: _look_up(uid))
    return Peer(role, {"who": _names.get(uid, f"uid:{uid}"), "uid": uid, "gid": gid, "pid": pid})


def _look_up(uid: int) -> None:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid:{uid}"
    if len(_names) >= _MAX_NAMES:
        _names.clear()
    _names[uid] = name
    _asked.discard(uid)
