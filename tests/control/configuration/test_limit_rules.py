from typing import Any

import pytest

from control.configuration.document import document_of
from control.configuration.fault import ConfigurationError
from control.configuration.limit_rules import limit_rules
from control.configuration.load import validate
from control.configuration.schema import convert
from proxy.config.limits import UNLIMITED, UNLIMITED_NODE, LimitOverride, RateLimits

UPSTREAMS = [{"name": "u", "endpoints": ["127.0.0.1:1"]}]
LISTENERS = [{"name": name, "address": "127.0.0.1:0", "upstream": "u"} for name in ("a", "b")]


def data(limits: Any, listeners: Any = LISTENERS) -> dict[str, Any]:
    return {"node": "n", "listeners": listeners, "upstreams": UPSTREAMS, "limits": limits}


def faults(limits: Any, listeners: Any = LISTENERS) -> list[tuple[str, str]]:
    with pytest.raises(ConfigurationError) as raised:
        validate(data(limits, listeners))
    return [(fault.key, fault.reason) for fault in raised.value.faults]


def test_quotas_are_read_with_their_units() -> None:
    limits = {
        "connections": 5,
        "request_bytes_rate": "1MiB",
        "protected_listener": "b",
        "per_address": {"response_bytes_rate": "2KiB"},
        "overrides": [{"network": "10.0.0.0/8", "request_bytes_rate": "3KiB", "connections": 0}, {"network": "::/0", "access": "deny"}],
    }
    config = validate(data(limits, [{**LISTENERS[0], "limits": {"connection_rate": 7}}, LISTENERS[1]]))
    assert (config.limits.connections, config.limits.request_bytes_rate, config.limits.protected_listener) == (5, 1024 * 1024, "b")
    assert config.limits.per_address == RateLimits(response_bytes_rate=2048)
    assert config.limits.overrides == (
        LimitOverride(network="10.0.0.0/8", request_bytes_rate=3072, connections=0),
        LimitOverride(network="::/0", access="deny"),
    )
    assert [listener.limits for listener in config.listeners] == [RateLimits(connection_rate=7), UNLIMITED]


def test_without_quotas_nothing_is_limited() -> None:
    config = validate({"node": "n", "listeners": LISTENERS, "upstreams": UPSTREAMS})
    assert config.limits == UNLIMITED_NODE


def test_networks_that_cannot_be_used_are_all_named() -> None:
    overrides = [
        {"network": "10.0.0.1/8"},
        {"network": "2001:db8::/96"},
        {"network": "10.0.0.0/8"},
        {"network": "10.0.0.0/8", "access": "deny"},
        {"connections": 5},
        "10.0.0.0/9",
        {"network": "11.0.0.0/255.0.0.0"},
        {"network": "192.0.2.7"},
    ]
    found = dict(faults({"overrides": overrides}))
    assert found == {
        "limits.overrides[0].network": "cannot be used: 10.0.0.1/8 has host bits set",
        "limits.overrides[1].network": "cannot be used: 2001:db8::/96 is part of a /64, and of IPv6 the whole of that counts as one address",
        "limits.overrides[3].network": "is already the network of limits.overrides[2] (line 0)",
        "limits.overrides[4].network": "is required",
        "limits.overrides[5]": "must be a mapping of keys to values",
        "limits.overrides[6].network": "cannot be used: 11.0.0.0/255.0.0.0 is written 11.0.0.0/8",
        "limits.overrides[7].network": "cannot be used: 192.0.2.7 is written 192.0.2.7/32",
    }


def test_the_protected_listener_is_one_of_several() -> None:
    assert faults({"protected_listener": "c"}) == [("limits.protected_listener", "is not the name of a listener; there are: a, b")]
    ((key, reason),) = faults({"protected_listener": "a"}, LISTENERS[:1])
    assert (key, "only listener" in reason) == ("limits.protected_listener", True)


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ({"connections": -1}, "limits.connections"),
        ({"connection_rate": 1_000_001}, "limits.connection_rate"),
        ({"request_bytes_rate": "2TiB"}, "limits.request_bytes_rate"),
        ({"per_address": {"request_frames_rate": "x"}}, "limits.per_address.request_frames_rate"),
        ({"overrides": [{"network": "10.0.0.0/8", "connections": -1}]}, "limits.overrides[0].connections"),
        ({"overrides": [{"network": "10.0.0.0/8", "access": "none"}]}, "limits.overrides[0].access"),
        ({"overrides": {"network": "10.0.0.0/8"}}, "limits.overrides"),
        ({"per_address": 5}, "limits.per_address"),
    ],
)
def test_what_is_out_of_range_is_named(limits: Any, key: str) -> None:
    assert [name for name, _ in faults(limits)] == [key]


def test_a_listener_refuses_a_limit_below_zero() -> None:
    """Number 193: a limit that cannot be is refused (here 0 is unlimited, so it is one below)."""
    assert faults({}, [{**LISTENERS[0], "limits": {"connections": -1}}]) == [("listeners[0].limits.connections", "must be from 0 to 10000000")]


def test_what_a_denied_network_is_given_besides_has_no_effect() -> None:
    document = document_of(data({"overrides": [{"network": "10.0.0.0/8", "access": "deny", "connections": 5, "request_bytes_rate": 1}]}))
    limit_rules(document, convert(document)["limits"], [])
    assert [(fault.key, fault.value) for fault in document.warnings] == [
        ("limits.overrides[0].connections", "5"),
        ("limits.overrides[0].request_bytes_rate", "1"),
    ]
