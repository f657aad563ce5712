"""Who we are to an upstream: the logins that the configuration asks for, and where their secrets are."""

from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig, from_wire, to_wire
from framegate.proxy.config.upstream_sasl import Login, UpstreamIdentity, UpstreamSasl, logins_of, secret_files

FOR_ALL = UpstreamSasl(mechanism="PLAIN", user="gate", password_file="/p")
BY_RULE = UpstreamSasl(
    identities=(
        UpstreamIdentity(principals=("alice",), mechanism="SCRAM-SHA-256", user="a", password_file="/a"),
        UpstreamIdentity(mechanism="OAUTHBEARER", token_file="/t"),
    )
)


def test_one_for_all_is_one_login_for_everybody() -> None:
    assert logins_of("u", FOR_ALL) == (Login((), "PLAIN", "gate", "u", "/p"),)


def test_identities_are_logins_in_their_order() -> None:
    assert logins_of("u", BY_RULE) == (Login(("alice",), "SCRAM-SHA-256", "a", "u/0", "/a"), Login((), "OAUTHBEARER", "", "u/1", "/t"))


def test_secrets_are_called_differently_and_the_link_carries_all() -> None:
    upstreams = tuple(
        UpstreamConfig(name=name, endpoints=("127.0.0.1:1",), sasl=sasl) for name, sasl in (("a", FOR_ALL), ("b", BY_RULE), ("c", None))
    )
    config = ProxyConfig(node="n", listeners=(ListenerConfig(name="l", address="127.0.0.1:0", upstream="a"),), upstreams=upstreams)
    assert secret_files(config) == {"a": "/p", "b/0": "/a", "b/1": "/t"}
    assert from_wire(to_wire(config)) == config
