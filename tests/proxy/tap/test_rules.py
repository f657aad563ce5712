import ipaddress
import tempfile

import pytest

from proxy.config.model import TapConfig, TapRule
from proxy.tap.point import TapPoint
from proxy.tap.record import DIRECTION_REQUEST, DIRECTION_RESPONSE
from proxy.tap.rules import CompiledRule, TapRules, parse_address
from proxy.tap.writer import TapWriter


def match(*rules: TapRule, direction: int = DIRECTION_REQUEST, principal: str | None = "CN=a", peer: str | None = "10.1.2.3:55") -> TapPoint | None:
    writer = TapWriter(TapConfig(directory=tempfile.gettempdir()), "n", "0", "b")
    return TapRules(rules, writer).match("main", "framed", direction, principal, peer, 7)


def test_without_a_rule_nothing_is_tapped() -> None:
    assert match() is None


def test_a_rule_without_conditions_matches_everything() -> None:
    assert match(TapRule(name="all")) is not None
    assert match(TapRule(name="all"), direction=DIRECTION_RESPONSE, principal=None, peer=None) is not None


@pytest.mark.parametrize(
    ("rule", "hits"),
    [
        (TapRule(name="r", listeners=("main", "x")), True),
        (TapRule(name="r", listeners=("x",)), False),
        (TapRule(name="r", directions=("request",)), True),
        (TapRule(name="r", directions=("response",)), False),
        (TapRule(name="r", directions=()), False),
        (TapRule(name="r", principals=("CN=a",)), True),
        (TapRule(name="r", principals=("CN=ab",)), False),
        (TapRule(name="r", networks=("10.0.0.0/8",)), True),
        (TapRule(name="r", networks=("10.1.2.4/32", "10.1.2.3/32")), True),
        (TapRule(name="r", networks=("192.168.0.0/16", "fd00::/8")), False),
        (TapRule(name="r", listeners=("main",), principals=("CN=b",)), False),
    ],
)
def test_every_condition_of_a_rule_must_hold(rule: TapRule, hits: bool) -> None:
    assert (match(rule) is not None) is hits


def test_a_client_without_an_address_is_in_no_network() -> None:
    assert match(TapRule(name="r", networks=("0.0.0.0/0", "::/0")), peer="unix:") is None
    assert match(TapRule(name="r", principals=("CN=a",)), principal=None) is None


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.1:80", "10.0.0.1"),
        ("[fd00::1]:80", "fd00::1"),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1"),
        ("[fe80::1%eth0]:80", "fe80::1"),
        ("unix:/run/a", None),
        ("", None),
        (None, None),
    ],
)
def test_addresses(peer: str | None, address: str | None) -> None:
    assert parse_address(peer) == (None if address is None else ipaddress.ip_address(address))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_sampling_takes_its_share_of_consecutive_connections_and_always_the_same_ones(share: float) -> None:
    rule = CompiledRule(TapRule(name="r", sample_connections=share))
    ids = [(3 << 57) | (9 << 29) | counter for counter in range(10_000)]
    taken = [rule.samples(connection) for connection in ids]
    assert abs(sum(taken) - share * len(ids)) <= 0.005 * len(ids)
    assert taken == [rule.samples(connection) for connection in ids]


def test_a_wrong_network_is_refused() -> None:
    with pytest.raises(ValueError, match="banana"):
        CompiledRule(TapRule(name="r", networks=("banana",)))
