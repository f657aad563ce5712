import os
import socket

import pytest

from framegate.proxy.config.address import format_peer, format_sockaddr, parse_address
from tests.fakes.cases import each_of


@each_of("text", ["127.0.0.1:9092", "[::1]:9092", "broker-0.internal:1", "localhost:65535", "unix:/run/a.sock"])
def test_an_address_reads_back(text: str) -> None:
    assert str(parse_address(text)) == text


@each_of(
    ("text", "part"),
    [
        ("foo", "not an address"),
        (":9092", "not an address"),
        ("host:", "port ''"),
        ("host:65536", "port '65536'"),
        ("host:0", "port 0"),
        ("host:٣", "port"),
        ("http://localhost:7000", "write host:port, without http://"),
        ("https://[::1]:7000/", "write host:port, without https://"),
        ("::1:9", "needs brackets"),
        ("[::1:9", "needs brackets"),
        ("[::g]:9", "not an IPv6 address"),
        ("1.2.3:9", "neither an address nor a host name"),
        ("a..b:9", "neither an address nor a host name"),
        ("-a:9", "neither an address nor a host name"),
        ("unix:", "needs a path"),
        (f"unix:/{'x' * 107}", "has 108 bytes"),
        ("unix:/run/a\0b", "NUL"),
    ],
)
def test_a_malformed_address_is_refused_with_the_reason(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_address(text)
    assert part in str(caught.value)


def test_a_unix_path_has_at_most_107_bytes_and_may_be_forbidden() -> None:
    assert parse_address(f"unix:/{'x' * 106}").kind == "unix"
    with pytest.raises(ValueError, match="Unix socket cannot"):
        parse_address("unix:/a", unix=False)


@each_of(
    ("one", "other", "collide"),
    [
        ("127.0.0.1:9", "127.0.0.1:9", True),
        ("127.0.0.1:9", "127.0.0.2:9", False),
        ("127.0.0.1:9", "127.0.0.1:8", False),
        ("0.0.0.0:9", "127.0.0.1:9", True),
        ("[::]:9", "10.0.0.1:9", True),
        ("127.0.0.1:0", "127.0.0.1:0", False),
        ("unix:/a", "unix:/a", True),
        ("unix:/a", "unix:/b", False),
        ("unix:/a", "unix:/x/../a", True),
        ("unix:/a", "127.0.0.1:9", False),
        ("0.0.0.0:9", "[::1]:9", False),
        ("0.0.0.0:9", "[::]:9", True),
        ("0.0.0.0:9", "[::ffff:10.0.0.1]:9", True),
        ("127.0.0.1:9", "[::ffff:127.0.0.1]:9", True),
        ("localhost:9", "localhost:9", True),
        ("localhost:9", "0.0.0.0:9", True),
        ("localhost:9", "127.0.0.1:9", False),
    ],
)
def test_addresses_collide_when_both_cannot_be_bound(one: str, other: str, collide: bool) -> None:
    first, second = parse_address(one, port_zero=True), parse_address(other, port_zero=True)
    assert (first.collides(second), second.collides(first)) == (collide, collide)


@each_of(
    ("endpoint", "listener", "meets"),
    [
        ("127.0.0.1:9", "127.0.0.1:9", True),
        ("127.0.0.1:9", "0.0.0.0:9", True),
        ("localhost:9", "[::]:9", True),
        ("[::1]:9", "[::]:9", True),
        ("0.0.0.0:9", "0.0.0.0:9", True),
        ("10.0.0.1:9", "0.0.0.0:9", False),
        ("127.0.0.1:9", "10.0.0.1:9", False),
        ("127.0.0.1:9", "0.0.0.0:8", False),
        ("127.0.0.1:9", "127.0.0.1:0", False),
        ("unix:/a", "unix:/a", True),
        ("unix:/a", "0.0.0.0:9", False),
    ],
)
def test_what_an_endpoint_on_this_machine_meets(endpoint: str, listener: str, meets: bool) -> None:
    assert parse_address(endpoint).reaches(parse_address(listener, port_zero=True)) is meets


@each_of(
    ("family", "sockaddr", "text"),
    [
        (socket.AF_INET, ("1.2.3.4", 5), "1.2.3.4:5"),
        (socket.AF_INET6, ("::1", 5, 0, 0), "[::1]:5"),
        (socket.AF_UNIX, "", "unix:"),
        (socket.AF_UNIX, "/run/a b", "unix:/run/a b"),
        (socket.AF_UNIX, b"\0abstract", "unix:@abstract"),
        (socket.AF_UNIX, b"\0", "unix:@"),
        (socket.AF_UNIX, b"\0\xff\xfe\0", r"unix:@\xff\xfe\x00"),
        (socket.AF_UNIX, os.fsdecode(b"/run/\xff\xfe"), r"unix:/run/\xff\xfe"),
        (socket.AF_UNIX, "/run/ä\n\x1b[31m\u2028", r"unix:/run/ä\n\x1b[31m\u2028"),
    ],
)
def test_kernel_addresses_become_text_and_unix_names_may_be_any_bytes(family: int, sockaddr: object, text: str) -> None:
    assert format_sockaddr(family, sockaddr) == text


@each_of(
    ("family", "sockaddr", "text"),
    [
        (socket.AF_INET, ("1.2.3.4", 5), "1.2.3.4:5"),
        (socket.AF_INET6, ("::ffff:1.2.3.4", 5, 0, 0), "1.2.3.4:5"),
        (socket.AF_INET6, ("::1", 5, 0, 0), "[::1]:5"),
        (socket.AF_INET6, ("fe80::1%lo", 5, 0, 1), "[fe80::1%lo]:5"),
        (socket.AF_UNIX, "[::ffff:x]", "unix:[::ffff:x]"),
    ],
)
def test_an_ipv4_client_of_an_ipv6_socket_is_shown_as_what_it_is(family: int, sockaddr: object, text: str) -> None:
    assert format_peer(family, sockaddr) == text


def test_an_address_knows_its_family() -> None:
    families = {"1.2.3.4:5": socket.AF_INET, "[::1]:5": socket.AF_INET6, "unix:/run/a": socket.AF_UNIX}
    assert {text: parse_address(text).family for text in families} == families


def test_only_this_machine_reaches_loopback_addresses_and_unix_sockets() -> None:
    local = {"127.0.0.1:9": True, "127.9.0.1:9": True, "[::1]:9": True, "[::ffff:127.0.0.1]:9": True, "localhost:9": True, "unix:/a": True}
    reached = {"0.0.0.0:9": False, "[::]:9": False, "10.0.0.1:9": False, "kafka:9": False}
    assert {text: parse_address(text).is_loopback for text in local | reached} == local | reached
