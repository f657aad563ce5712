"""proxy.auth.admission: who may come in, however it was found out who they are."""

import pytest

from proxy.auth.admission import Admission, AdmittingAuthenticators
from proxy.auth.mapping_rules import RuleError
from proxy.cause import Cause
from proxy.errors import AuthenticationError
from proxy.network.authenticator import ANONYMOUS, AnonymousAuthenticators, AuthenticatorFactory, CertificateAuthenticators, HandshakeAuthenticator
from proxy.network.transport import Identity
from tests.fakes.authenticator import Expect, Say, ScriptedAuthenticators, framed
from tests.fakes.network import net_bench


@pytest.mark.parametrize(
    ("principal", "admitted"),
    [
        ("CN=app", True),
        ("cn=app", False),
        ("CN=apps", False),
        ("O=ab", True),
        ("O=abc", False),
        ("O=a\n", False),
        ("spiffe://td/ns/prod/sa/x", True),
        ("spiffe://td/ns/prod/", False),
        ("xspiffe://td/ns/prod/sa/x", False),
        ("spiffe://td/ns/test/sa/x", False),
        ("RULE:x", False),
        ("", False),
    ],
)
def test_a_principal_as_it_is_or_all_of_one_that_a_pattern_matches(principal: str, admitted: bool) -> None:
    assert Admission(["CN=app", r"RULE:spiffe://td/ns/prod/.+", "RULE:O=a|O=ab"]).admits(principal) is admitted


def test_a_pattern_may_name_its_groups_as_java_does_and_a_broken_one_is_refused() -> None:
    assert Admission([r"RULE:(?<name>a+)-\1"]).admits("aa-aa")
    with pytest.raises(RuleError, match="the pattern"):
        Admission(["RULE:("])


def test_who_is_known_by_a_certificate_is_judged_at_once() -> None:
    factory = AdmittingAuthenticators(Admission(["CN=app"]), CertificateAuthenticators())
    assert factory.make(Identity(subject="CN=app")).principal == "CN=app"
    with pytest.raises(AuthenticationError, match="the principal 'CN=other' is none of allowed_principals"):
        factory.make(Identity(subject="CN=other"))


def test_nobody_comes_in_only_when_that_is_said() -> None:
    with pytest.raises(AuthenticationError, match="'ANONYMOUS'"):
        AdmittingAuthenticators(Admission(["CN=app"]), AnonymousAuthenticators()).make(Identity())
    assert AdmittingAuthenticators(Admission([ANONYMOUS]), AnonymousAuthenticators()).make(Identity()).principal == ANONYMOUS


@pytest.mark.parametrize("admitted", [True, False])
def test_who_proves_it_in_frames_is_judged_once_that_is_done(admitted: bool) -> None:
    scripted = ScriptedAuthenticators(Expect(b"proof"), Say(b"good"))
    factory = AdmittingAuthenticators(Admission(["somebody" if admitted else "another"]), scripted)
    with net_bench() as net:
        channel, peer = net.pair(net.options(authenticators=factory), tcp=True)
        net.poll()
        assert not channel.is_open
        peer.send(framed(b"proof"))
        net.poll_until(lambda: channel.is_open or channel.close_cause)
        assert scripted.made[0].closed == 1
        if admitted:
            assert (channel.principal, channel.principal_type) == ("somebody", "User")
        else:
            assert (channel.close_cause, channel.detail) == (Cause.AUTH_FAILED, "the principal 'somebody' is none of allowed_principals")
        peer.close()


def test_who_was_admitted_proves_it_again_as_the_others_factory_says() -> None:
    class Repeating(AuthenticatorFactory):
        def make(self, identity: Identity) -> HandshakeAuthenticator:
            return HandshakeAuthenticator("CN=app")

        def again(self, identity: Identity, principal: str) -> HandshakeAuthenticator:
            return HandshakeAuthenticator(f"{principal} again")

    found = AdmittingAuthenticators(Admission([ANONYMOUS]), Repeating()).again(Identity(), "CN=app")
    assert found is not None
    assert found.principal == "CN=app again"
    assert AdmittingAuthenticators(Admission([ANONYMOUS]), AnonymousAuthenticators()).again(Identity(), "x") is None
