"""framegate.proxy.auth.factories: what settings ask for, and nothing that they do not."""

import subprocess
import sys
from typing import Any

import pytest

from framegate.proxy.auth.factories import of_clients, of_upstream
from framegate.proxy.config.model import ListenerConfig, UpstreamConfig
from framegate.proxy.config.tls import ListenerTls, PrincipalConfig, UpstreamTls
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import ANONYMOUS
from framegate.proxy.network.transport import Identity
from tests.proxy.auth.test_certificates import SPIFFE

ASKED = ListenerTls(certificate="c", key="k", client_auth="requested", client_ca="ca")
SHOWN = Identity(subject="CN=App,O=x", certificate=SPIFFE)


def principal(**keys: Any) -> str:
    listener = ListenerConfig(name="l", address="127.0.0.1:0", **keys)
    return of_clients(listener).make(SHOWN).principal


def test_the_name_that_is_configured_through_the_rules_that_are() -> None:
    assert principal(tls=ASKED) == "CN=App,O=x"
    rules = PrincipalConfig(rules=("RULE:^CN=none$/x/", "RULE:^CN=(.*),O=x$/$1/L"))
    assert principal(tls=ASKED, principal=rules) == "app"
    assert principal(tls=ASKED, principal=PrincipalConfig(from_="uri", rules=(r"RULE:spiffe:\/\/td\/ns\/(.*)\/sa\/(.*)/$2@$1/",))) == "y@x"
    assert principal(tls=ASKED, principal=PrincipalConfig(from_="dns")) == "h"
    assert principal(tls=ASKED, principal=PrincipalConfig(rules=(r"RULE:^CN=(\w{1,9}),O=(.*)$/$1,$2/", "DEFAULT"))) == "App,x"


def test_clients_without_certificates_are_anonymous_and_only_allowed_principals_may_connect() -> None:
    assert principal() == ANONYMOUS
    assert principal(tls=ListenerTls(certificate="c", key="k")) == ANONYMOUS
    assert principal(tls=ASKED, allowed_principals=("RULE:CN=App,.*",)) == "CN=App,O=x"
    with pytest.raises(AuthenticationError, match="'CN=App,O=x' is none of allowed_principals"):
        principal(tls=ASKED, allowed_principals=("CN=app,O=x",))
    with pytest.raises(AuthenticationError, match=ANONYMOUS):
        principal(allowed_principals=("CN=app",))


def test_an_upstream_is_its_subject_and_with_pins_one_of_their_keys() -> None:
    upstream = UpstreamConfig(name="u", endpoints=("127.0.0.1:1",), tls=UpstreamTls())
    assert of_upstream(upstream).make(SHOWN).principal == "CN=App,O=x"
    pinned = UpstreamConfig(name="u", endpoints=("127.0.0.1:1",), tls=UpstreamTls(pins=("sha256/x",)))
    with pytest.raises(AuthenticationError, match="none of pins"):
        of_upstream(pinned).make(SHOWN)


def test_who_asks_for_nothing_loads_nothing() -> None:
    script = (
        "import sys; from framegate.proxy.auth.factories import of_clients, of_upstream\n"
        "from framegate.proxy.config.model import ListenerConfig, UpstreamConfig\n"
        "of_clients(ListenerConfig(name='l', address='127.0.0.1:0')); of_upstream(UpstreamConfig(name='u', endpoints=('127.0.0.1:1',)))\n"
        "print([name for name in sys.modules if name in ('hashlib', 'ssl') or name.startswith('framegate.proxy.auth.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "['framegate.proxy.auth.factories']"
