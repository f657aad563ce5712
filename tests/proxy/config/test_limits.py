import dataclasses

import pytest

from framegate.proxy.config.key import keys
from framegate.proxy.config.limits import ANY_ADDRESS, UNLIMITED, AddressLimits, LimitOverride, LimitsConfig, RateLimits, client_key, parse_network
from tests.fakes.cases import each_of


@each_of(
    ("peer", "key"),
    [
        ("10.1.2.3:5", "10.1.2.3"),
        ("[2001:db8:1:2:3::4]:5", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::ffff]:6", "2001:db8:1:2::/64"),
        ("[2001:db8:1:3::4]:5", "2001:db8:1:3::/64"),
        ("[::1]:5", "::/64"),
        ("[fe80::1%eth0]:5", "fe80::/64"),
        ("[::ffff:10.1.2.3]:5", "10.1.2.3"),
        ("unix:", ""),
        ("unix:/run/10.0.0.1:5", ""),
        ("unix:@name", ""),
    ],
)
def test_an_address_is_one_of_ipv4_or_a_64_of_ipv6(peer: str, key: str) -> None:
    assert client_key(peer) == key


OVERRIDES = (
    LimitOverride(network="10.0.0.0/8", connections=100),
    LimitOverride(network="10.1.0.0/16", connections=0, request_bytes_rate=5),
    LimitOverride(network="10.1.2.3/32", access="deny"),
    LimitOverride(network="2001:db8::/32", connections=7),
    LimitOverride(network="2001:db8:1:2::/64", connections=8),
)


@each_of(
    ("peer", "network", "connections", "rate", "denied"),
    [
        ("9.255.255.255:1", ANY_ADDRESS, 3, 9, False),
        ("10.0.0.0:1", "10.0.0.0/8", 100, 9, False),
        ("10.255.255.255:1", "10.0.0.0/8", 100, 9, False),
        ("11.0.0.0:1", ANY_ADDRESS, 3, 9, False),
        ("10.1.2.2:1", "10.1.0.0/16", 0, 5, False),
        ("10.1.2.3:1", "10.1.2.3/32", 3, 9, True),
        ("[::ffff:10.1.2.3]:1", "10.1.2.3/32", 3, 9, True),
        ("[2001:db8:1:2::9]:1", "2001:db8:1:2::/64", 8, 9, False),
        ("[2001:db8:1:3::9]:1", "2001:db8::/32", 7, 9, False),
        ("[::a01:203]:1", ANY_ADDRESS, 3, 9, False),
        ("[2001:db9::]:1", ANY_ADDRESS, 3, 9, False),
        ("unix:", ANY_ADDRESS, 0, 0, False),
    ],
)
def test_the_most_specific_network_decides_and_replaces_what_it_gives(peer: str, network: str, connections: int, rate: int, denied: bool) -> None:
    addresses = AddressLimits(RateLimits(connections=3, request_bytes_rate=9), OVERRIDES)
    found = addresses.of(client_key(peer))
    assert found == (RateLimits(connections=connections, request_bytes_rate=rate), network, denied)


def test_every_address_may_have_the_same_limits_without_an_override_or_by_one() -> None:
    limits = RateLimits(connections=3)
    assert AddressLimits(limits).of("10.0.0.1") == (limits, ANY_ADDRESS, False)
    assert AddressLimits(limits).of("") == (UNLIMITED, ANY_ADDRESS, False)
    nobody = AddressLimits(UNLIMITED, (LimitOverride(network="0.0.0.0/0", access="deny"), LimitOverride(network="127.0.0.1/32", connections=5)))
    assert nobody.of("8.8.8.8").denied
    assert nobody.of("127.0.0.1") == (RateLimits(connections=5), "127.0.0.1/32", False)
    assert not nobody.of("::/64").denied


@each_of("text", ["10.0.0.1/8", "10.0.0.0/33", "::1/128", "2001:db8::/65", "example.org", "", "10.0.0.0/8/8"])
def test_a_network_that_cannot_be_used_says_why(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_network(text)


def test_an_override_has_the_keys_of_a_rate_limit() -> None:
    names = {field.name for field in dataclasses.fields(RateLimits)}
    assert {field.name for field in dataclasses.fields(LimitOverride)} == names | {"network", "access"}
    for name in names:
        mine, other = keys(RateLimits)[name], keys(LimitOverride)[name]
        assert (mine.unit, mine.range) == (other.unit, other.range)
        assert keys(LimitsConfig)[name] == mine


def test_the_kinds_of_addresses_are_those_without_an_override_and_each_network():
    plain = RateLimits(request_bytes_rate=1)
    limits = AddressLimits(plain, [LimitOverride(network="10.0.0.0/8", request_bytes_rate=2)])
    assert limits.kinds == [plain, RateLimits(request_bytes_rate=2)]
    assert AddressLimits(RateLimits()).kinds == [RateLimits()]
