"""Finds out why the admin API cannot be reached, after a call has failed: connects again with plain sockets, because gRPC's messages name neither
the file nor a remedy.
"""

import contextlib
import errno
import grp
import os
import pwd
import socket
import ssl
import stat
from typing import Final

from framegate.proxy.config.address import Address, parse_address

_HINT: Final = "; is `framegate serve` running there? (--address, FRAMEGATE_ADDRESS)"
_TIMEOUT_S: Final = 2.0


def unreachable(address: str) -> str:
    """The reason, as the second half of a message: ``there is no socket /run/x; is `framegate serve` …``."""
    parsed = parse_address(address)
    problem = _path_problem(parsed.host) if parsed.kind == "unix" else None
    return problem or _connect_problem(parsed) or _peer_problem(parsed)


def _path_problem(path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return f"there is no socket {path}{_HINT}"
    except PermissionError:
        return f"permission denied: this user cannot search the folder of {path}"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return None if stat.S_ISSOCK(mode) else f"{path} is not a socket"


def _connect_problem(address: Address) -> str | None:
    try:
        with _connected(address):
            return None
    except ConnectionRefusedError:
        gone = f"no process listens on {address.host}; the one that created it has ended" if address.kind == "unix" else "no process listens there"
        return gone + _HINT
    except PermissionError:
        return f"permission denied: the socket is {_owner(address.host)}"
    except (TimeoutError, BlockingIOError):
        return f"no connection within {_TIMEOUT_S:g} s; the server accepts none at the moment"
    except socket.gaierror as error:
        return f"the name {address.host} cannot be resolved: {error.strerror}"
    except OSError as error:
        wrong_kind = address.kind == "unix" and error.errno == errno.EPROTOTYPE
        return f"{address.host} is not a stream socket" if wrong_kind else str(error.strerror or error)


def _connected(address: Address) -> socket.socket:
    if address.kind != "unix":
        return socket.create_connection((address.host, address.port), _TIMEOUT_S)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(_TIMEOUT_S)
        sock.connect(address.host)
    except OSError:
        sock.close()
        raise
    return sock


def _owner(path: str) -> str:
    """Of whom a socket is, and whom it lets in."""
    try:
        found = os.stat(path)
    except OSError:
        return "of another user"
    user, group = str(found.st_uid), str(found.st_gid)
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(found.st_uid).pw_name
        group = grp.getgrgid(found.st_gid).gr_name
    return f"of user {user} and group {group}, mode {stat.S_IMODE(found.st_mode):04o}"


def _peer_problem(address: Address) -> str:
    """A process listens, but it is not a plaintext gRPC server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # only the handshake is tried; no data is sent
    speaks_tls = False
    try:
        with _connected(address) as sock, context.wrap_socket(sock):
            speaks_tls = True
    except ssl.SSLError as error:
        # An alert is TLS, too: the server wants another version, or a client certificate.
        speaks_tls = "ALERT" in (error.reason or "")
    except OSError:
        pass
    if speaks_tls:
        return "the server there uses TLS; is it a listener for clients? `admin.tcp` needs --tls with a certificate"
    return "the server there is not the admin API: it does not speak gRPC"
