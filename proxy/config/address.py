"""Addresses as the configuration writes them, and as rows, logs and the API show them: ``host:port``, ``[v6]:port`` or ``unix:PATH``."""

import ipaddress
import os
import re
import socket
from typing import Final, Literal, NamedTuple

MAX_UNIX_PATH_BYTES: Final = 107  # the size of ``sun_path`` without the final NUL
_MAPPED: Final = "::ffff:"
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")

Kind = Literal["ipv4", "ipv6", "name", "unix"]


class Address(NamedTuple):
    """One address. ``host`` is without brackets, or the path when ``kind`` is ``unix`` (then ``port`` is 0)."""

    kind: Kind
    host: str
    port: int

    def __str__(self) -> str:
        if self.kind == "unix":
            return f"unix:{self.host}"
        return f"[{self.host}]:{self.port}" if self.kind == "ipv6" else f"{self.host}:{self.port}"

    @property
    def family(self) -> int:
        """The address family of a socket to it. Not for names."""
        assert self.kind != "name", "a name has to be resolved first"
        return int({"unix": socket.AF_UNIX, "ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}[self.kind])

    @property
    def wildcard(self) -> bool:
        """Whether it stands for every address of the machine."""
        return self.kind in ("ipv4", "ipv6") and ipaddress.ip_address(self.host).is_unspecified

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine, or this pod, reaches it: a loopback address, ``localhost``, or a Unix socket."""
        return self.kind == "unix" or self.host == "localhost" or (self.kind != "name" and ipaddress.ip_address(self._plain).is_loopback)

    def collides(self, other: "Address") -> bool:
        """Whether both cannot be bound at once. Port 0 never collides; a name only with the same name and with a wildcard."""
        if self.kind == "unix" or other.kind == "unix":
            return self.kind == other.kind and os.path.normpath(self.host) == os.path.normpath(other.host)
        if self.port == 0 or self.port != other.port:
            return False
        return self._plain == other._plain or self._covers(other) or other._covers(self)

    @property
    def _plain(self) -> str:
        """The host; an IPv4 address that is written as IPv6 (``::ffff:1.2.3.4``) in its IPv4 form."""
        mapped = ipaddress.IPv6Address(self.host).ipv4_mapped if self.kind == "ipv6" else None
        return self.host if mapped is None else str(mapped)

    def _covers(self, other: "Address") -> bool:
        """Whether it is a wildcard for the other's family: ``[::]`` also for IPv4, ``0.0.0.0`` only for IPv4."""
        return self.wildcard and (self.kind == "ipv6" or other.kind != "ipv6" or other._plain != other.host)

    def reaches(self, other: "Address") -> bool:
        """Whether a connection to it from this machine reaches a listener that is bound to ``other``."""
        if self.kind == "unix" or other.kind == "unix":
            return self.collides(other)
        local = self.is_loopback or self.wildcard
        return self.port == other.port != 0 and (self._plain == other._plain or (local and other.wildcard))


def parse_address(text: str, *, port_zero: bool = False, unix: bool = True) -> Address:
    """Read an address; raises ValueError with a sentence that describes the fault. ``port_zero``: whether port 0 (the kernel chooses) is allowed, as
    for listeners. ``unix``: whether ``unix:PATH`` is allowed.
    """
    if text.startswith("unix:"):
        if not unix:
            raise ValueError("a Unix socket cannot be used here: write host:port")
        return _unix(text[5:])
    if "://" in text:
        raise ValueError(f"is a URL: write host:port, without {text.partition('://')[0]}://")
    host, separator, port_text = text.rpartition(":")
    if not separator or not host:
        raise ValueError("is not an address: write host:port, [v6]:port" + (" or unix:PATH" if unix else ""))
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65535:
        raise ValueError(f"port {port_text!r} is not a number from {0 if port_zero else 1} to 65535")
    port = int(port_text)
    if port == 0 and not port_zero:
        raise ValueError("port 0 cannot be used here")
    return _host(host, port)


def _unix(path: str) -> Address:
    if not path:
        raise ValueError("unix: needs a path")
    if "\0" in path:
        raise ValueError("a path cannot hold a NUL")
    size = len(path.encode())
    if size > MAX_UNIX_PATH_BYTES:
        raise ValueError(f"the path has {size} bytes; a Unix socket's path has at most {MAX_UNIX_PATH_BYTES}")
    return Address("unix", path, 0)


def _host(host: str, port: int) -> Address:
    if host.startswith("[") and host.endswith("]"):
        try:
            return Address("ipv6", str(ipaddress.IPv6Address(host[1:-1])), port)
        except ValueError as error:
            raise ValueError(f"{host} is not an IPv6 address") from error
    if ":" in host:
        raise ValueError("an IPv6 address needs brackets: [v6]:port")
    try:
        return Address("ipv4", str(ipaddress.IPv4Address(host)), port)
    except ValueError:
        labels = host.rstrip(".").split(".")
        if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdigit():
            raise ValueError(f"{host!r} is neither an address nor a host name") from None
        return Address("name", host, port)


def format_sockaddr(family: int, sockaddr: object) -> str:
    r"""The text of an address from ``getsockname`` or ``accept``: ``host:port``, ``[v6]:port`` or ``unix:PATH``.

    A peer may have bound its Unix socket to any bytes, or to none: an unnamed one is ``unix:``, an abstract name begins with ``@``, as ``ss`` and
    ``lsof`` show it; bytes that are not UTF-8, and characters that cannot be printed, are escaped as ``\xff``.
    """
    if family == socket.AF_UNIX:
        return f"unix:{_unix_name(sockaddr)}"
    assert isinstance(sockaddr, tuple), "an internet socket's address is a tuple"
    host, port = sockaddr[0], sockaddr[1]
    return f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"


def format_peer(family: int, sockaddr: object) -> str:
    """The same for a client's address; an IPv4 client of an IPv6 socket is shown as IPv4."""
    text = format_sockaddr(family, sockaddr)
    return text.removeprefix(f"[{_MAPPED}").replace("]", "", 1) if family == socket.AF_INET6 and text.startswith(f"[{_MAPPED}") else text


def _unix_name(name: object) -> str:
    assert isinstance(name, str | bytes), "a Unix socket's name is text, bytes when it is abstract"
    raw = os.fsencode(name)
    shown = ("@" if raw[:1] == b"\0" else "") + raw.removeprefix(b"\0").decode("utf-8", "backslashreplace")
    return shown if shown.isprintable() else "".join(_escaped(character) for character in shown)


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
