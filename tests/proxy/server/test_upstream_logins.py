"""Which login is for which client."""

import pytest

from framegate.proxy.auth.auth_requests import CredentialSource
from framegate.proxy.auth.mapping_rules import RuleError
from framegate.proxy.config.sasl import UpstreamIdentity, UpstreamSasl
from framegate.proxy.server.upstream_logins import UpstreamLogins


class Nobody(CredentialSource):
    def ask(self, inquiry):
        raise AssertionError

    def forget(self, inquiry):
        raise AssertionError


def identity(*principals):
    return UpstreamIdentity(principals=principals, mechanism="PLAIN", user="u", password_file="/p")


def test_a_login_for_all_is_the_same_for_each_client():
    logins = UpstreamLogins("u", UpstreamSasl(mechanism="PLAIN", user="u", password_file="/p"), Nobody())
    assert logins.choose("alice") is logins.choose("ANONYMOUS") is not None


def test_the_first_login_that_names_the_client_is_used_or_none():
    sasl = UpstreamSasl(identities=(identity("alice", "RULE:CN=app-[0-9]+//"), identity("bob", "RULE:CN=app-.*//"), identity()))
    logins = UpstreamLogins("u", sasl, Nobody())
    chosen = [logins.choose(name) for name in ("alice", "CN=app-7", "bob", "CN=app-x", "CN=app-7,O=x", "carol", "")]
    first, _, second, *_, last = chosen
    assert chosen == [first, first, second, second, second, last, last]
    assert len({first, second, last}) == 3
    logins = UpstreamLogins("u", UpstreamSasl(identities=(identity("alice", "RULE:CN=a//L"),)), Nobody())
    assert (logins.choose("Alice"), logins.choose("alice "), logins.choose("CN=ab")) == (None, None, None)
    assert logins.choose("CN=a") is not None


def test_a_rule_that_control_did_not_read_is_a_bug():
    with pytest.raises(RuleError):
        UpstreamLogins("u", UpstreamSasl(identities=(identity("RULE:("),)), Nobody())
