"""The callers of the API: what the kernel says about the process at the other end of a Unix socket, or what a certificate proves; and their role."""

import asyncio
import functools
import hashlib
import pwd
import secrets
import socket
import struct
from typing import Final, NamedTuple

from framegate.control.events import Row
from framegate.control.v1.options_pb2 import Role
from framegate.proxy.auth.allowed_principals import AllowedPrincipals
from framegate.proxy.auth.certificates import MappedAuthenticators
from framegate.proxy.auth.mapping_rules import MappingRules
from framegate.proxy.config.model import AdminTcp
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.certificate import subject_of
from framegate.proxy.network.transport import Identity

__all__ = ["ROLES", "CertificatePeers", "Peer", "Peers", "role_name", "unix_peer"]

ROLES: Final = {"admin": Role.ROLE_ADMIN, "operate": Role.ROLE_OPERATE, "view": Role.ROLE_VIEW}
"""By the configuration's words, the highest first."""
_CREDENTIALS: Final = struct.Struct("3i")
"""``struct ucred``: pid, uid, gid."""


class Peer(NamedTuple):
    """A caller. ``fields``: of its audit rows: who, and uid, gid and pid, or the certificate and the address."""

    role: Role.ValueType
    fields: Row


class Peers:
    """The callers of the open connections, by the name that gRPC has for a connection."""

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}

    def add(self, peer: Peer) -> str:
        """Add a caller; returns the name in the abstract namespace that the connection to gRPC's socket must have. No name is used twice."""
        name = secrets.token_hex(16)
        self._peers[name] = peer
        return name

    def remove(self, name: str) -> None:
        """Its connection has ended."""
        del self._peers[name]

    def find(self, name: str) -> Peer | None:
        """The caller of a call, by ``ServicerContext.peer()``."""
        return self._peers.get(name.removeprefix("unix-abstract:"))


def role_name(role: Role.ValueType) -> str:
    """The configuration's word for a role."""
    return Role.Name(role).removeprefix("ROLE_").lower()


async def unix_peer(role: Role.ValueType, sock: socket.socket, transport: asyncio.Transport) -> Peer:
    """The process that connected, as the kernel noted it then. Its number is 0 if it is in another container."""
    del transport
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return Peer(role, {"who": await asyncio.to_thread(_user, uid), "uid": uid, "gid": gid, "pid": pid})


@functools.lru_cache(maxsize=1024)
def _user(uid: int) -> str:
    """The name of a user; its number if it has none, as in containers. It may ask a directory service."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid:{uid}"


class CertificatePeers:
    """Finds the principal of a certificate, as listeners do, and its role."""

    def __init__(self, config: AdminTcp) -> None:
        """Raises RuleError if rules cannot be read."""
        self._principals = MappedAuthenticators(MappingRules(",".join(config.principal.rules)), config.principal.from_)
        self._allowed = {role: AllowedPrincipals(getattr(config, name)) for name, role in ROLES.items()}

    def peer(self, certificate: bytes, address: str) -> Peer:
        """The caller with a verified certificate in DER form. Without a principal, or a role for it, each of its calls is refused."""
        subject = subject_of(certificate)
        try:
            principal = self._principals.make(Identity(subject=subject, certificate=certificate)).principal
        except AuthenticationError:
            return Peer(Role.ROLE_UNSPECIFIED, {"who": subject, "certificate": _fingerprint(certificate), "address": address})
        role = next((role for role, allowed in self._allowed.items() if allowed.allows(principal)), Role.ROLE_UNSPECIFIED)
        return Peer(role, {"who": principal, "certificate": _fingerprint(certificate), "address": address})


def _fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()
