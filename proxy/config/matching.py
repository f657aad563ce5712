"""Patterns for names and for client addresses: as in a shell, with ``*``, ``?`` and ``[…]``."""

import fnmatch
import functools
import ipaddress
import re
from collections.abc import Callable

Matcher = Callable[[str], bool]


@functools.lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(text))


def text_matcher(pattern: str) -> Matcher:
    """Whether a text matches a pattern as a whole; takes linear time."""
    match = _pattern(pattern).match
    return lambda text: match(text) is not None


def address_matcher(value: str) -> Matcher:
    """Whether a peer, ``host:port``, ``[v6]:port`` or ``unix:PATH``, is of an address or network; or whether its host matches a pattern. Raises
    ValueError: a network that is not valid.
    """
    try:
        network = ipaddress.ip_network(value)
    except ValueError as error:
        if "/" in value and not value.startswith("unix:"):
            raise ValueError(f"not a network: {error}") from error
        matches = text_matcher(value)
        return lambda peer: matches(_host(peer))
    return lambda peer: _is_in(peer, network)


def _host(peer: str) -> str:
    """The host; of a Unix socket the whole text."""
    return peer if peer.startswith("unix:") else peer.rpartition(":")[0].strip("[]").partition("%")[0]


def _is_in(peer: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    try:
        address = ipaddress.ip_address(_host(peer))
    except ValueError:  # of a Unix socket
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address) in network
