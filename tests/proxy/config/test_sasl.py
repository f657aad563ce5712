"""The keys of SASL are those that its modules accept; the logins to upstreams, and the files of their secrets."""

import typing

from framegate.control.identity.jwks import ALGORITHMS
from framegate.control.identity.tokens import TokenRules
from framegate.proxy.auth.server import MECHANISMS
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig, from_wire, to_wire
from framegate.proxy.config.sasl import (
    ListenerSasl,
    Login,
    Mechanism,
    TokenAlgorithm,
    TokenConfig,
    UpstreamIdentity,
    UpstreamSasl,
    logins_of,
    secret_files,
)
from framegate.proxy.network.frame_exchange import MAX_FRAME


def test_the_words_are_those_of_the_modules_that_take_them() -> None:
    assert set(typing.get_args(Mechanism)) == set(MECHANISMS)
    assert set(typing.get_args(TokenAlgorithm)) == set(ALGORITHMS)


def test_the_defaults_are_theirs_too() -> None:
    rules, config = TokenRules("i", "a"), TokenConfig(jwks="j", issuer="i", audience="a")
    assert (config.algorithms, config.scopes, config.principal_claim) == (rules.algorithms, rules.scopes, rules.principal_claim)
    assert (config.scope_claim, config.clock_skew_ms) == (rules.scope_claim, rules.clock_skew_s * 1000)
    assert ListenerSasl(mechanisms=()).max_frame == MAX_FRAME


FOR_ALL = UpstreamSasl(mechanism="PLAIN", user="gate", password_file="/p")
BY_RULE = UpstreamSasl(
    identities=(
        UpstreamIdentity(principals=("alice",), mechanism="SCRAM-SHA-256", user="a", password_file="/a"),
        UpstreamIdentity(mechanism="OAUTHBEARER", token_file="/t"),
    )
)


def test_an_upstream_has_one_login_for_all_or_one_for_each_identity_in_order() -> None:
    assert logins_of("u", FOR_ALL) == (Login((), "PLAIN", "gate", "u", "/p"),)
    assert logins_of("u", BY_RULE) == (Login(("alice",), "SCRAM-SHA-256", "a", "u/0", "/a"), Login((), "OAUTHBEARER", "", "u/1", "/t"))


def test_secrets_are_called_differently_and_the_link_carries_all() -> None:
    upstreams = tuple(
        UpstreamConfig(name=name, endpoints=("127.0.0.1:1",), sasl=sasl) for name, sasl in (("a", FOR_ALL), ("b", BY_RULE), ("c", None))
    )
    config = ProxyConfig(node="n", listeners=(ListenerConfig(name="l", address="127.0.0.1:0", upstream="a"),), upstreams=upstreams)
    assert secret_files(config) == {"a": "/p", "b/0": "/a", "b/1": "/t"}
    assert from_wire(to_wire(config)) == config
