"""framegate.proxy.auth.allowed_principals: who may come in, however it was found out who they are."""

import pytest

from framegate.proxy.auth.allowed_principals import AllowedPrincipals, AllowedPrincipalsAuthenticators
from framegate.proxy.auth.mapping_rules import RuleError
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import ANONYMOUS, AnonymousAuthenticators, CertificateAuthenticators
from framegate.proxy.network.transport import Identity
from tests.fakes.cases import each_of


@each_of(
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
    assert AllowedPrincipals(["CN=app", r"RULE:spiffe://td/ns/prod/.+", "RULE:O=a|O=ab"]).allows(principal) is admitted


def test_a_pattern_may_name_its_groups_as_java_does_and_a_broken_one_is_refused() -> None:
    assert AllowedPrincipals([r"RULE:(?<name>a+)-\1"]).allows("aa-aa")
    with pytest.raises(RuleError, match="the pattern"):
        AllowedPrincipals(["RULE:("])


def test_a_principal_that_is_known_from_the_handshake_is_checked_at_once() -> None:
    factory = AllowedPrincipalsAuthenticators(AllowedPrincipals(["CN=app"]), CertificateAuthenticators())
    assert factory.make(Identity(subject="CN=app")).principal == "CN=app"
    with pytest.raises(AuthenticationError, match="the principal 'CN=other' is none of allowed_principals"):
        factory.make(Identity(subject="CN=other"))
    with pytest.raises(AuthenticationError, match="'ANONYMOUS'"):
        AllowedPrincipalsAuthenticators(AllowedPrincipals(["CN=app"]), AnonymousAuthenticators()).make(Identity())
    assert AllowedPrincipalsAuthenticators(AllowedPrincipals([ANONYMOUS]), AnonymousAuthenticators()).make(Identity()).principal == ANONYMOUS
