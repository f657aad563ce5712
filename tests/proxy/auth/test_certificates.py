"""framegate.proxy.auth.certificates: which name of a certificate is the principal."""

import pytest
from cryptography import x509

from framegate.proxy.auth.certificates import MappedAuthenticators
from framegate.proxy.auth.mapping_rules import MappingRules
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import ANONYMOUS
from framegate.proxy.network.transport import Identity
from tests.fakes.cases import each_of
from tests.proxy.auth.test_certificate_names import certificate

SPIFFE = certificate(x509.UniformResourceIdentifier("https://a"), x509.UniformResourceIdentifier("spiffe://td/ns/x/sa/y"), x509.DNSName("h"))


def test_the_subject_goes_through_the_rules() -> None:
    made = MappedAuthenticators(MappingRules("RULE:CN=(.*?),.*/$1/L")).make(Identity(subject="CN=Alice,O=x"))
    assert (made.complete, made.principal) == (True, "alice")


def test_the_first_alternative_name_that_a_rule_matches() -> None:
    identity = Identity(subject="CN=a", certificate=SPIFFE)
    assert MappedAuthenticators(MappingRules("RULE:spiffe:\\/\\/td\\/(.*)/$1/"), "uri").make(identity).principal == "ns/x/sa/y"
    assert MappedAuthenticators(MappingRules(), "uri").make(identity).principal == "https://a"
    assert MappedAuthenticators(MappingRules(), "dns").make(identity).principal == "h"


@each_of("source", ["subject", "uri"])
def test_who_shows_no_certificate_is_anonymous_whatever_the_rules(source: str) -> None:
    assert MappedAuthenticators(MappingRules(""), source).make(Identity()).principal == ANONYMOUS  # type: ignore[arg-type]


@each_of(
    ("rules", "source", "words"),
    [
        ("RULE:CN=b/b/", "subject", "no rule matches the subject name 'CN=a'"),
        ("RULE:.*//", "subject", "an empty one"),
        ("DEFAULT", "email", "has no email name"),
        ("RULE:spiffe:.*x/a/", "uri", "no rule matches the uri name 'https://a', 'spiffe://td/ns/x/sa/y'"),
    ],
)
def test_who_has_no_such_name_is_refused(rules: str, source: str, words: str) -> None:
    with pytest.raises(AuthenticationError, match=words):
        MappedAuthenticators(MappingRules(rules), source).make(Identity(subject="CN=a", certificate=SPIFFE))  # type: ignore[arg-type]


def test_an_empty_subject_is_no_name() -> None:
    with pytest.raises(AuthenticationError, match="has no subject name"):
        MappedAuthenticators(MappingRules()).make(Identity(subject="", certificate=SPIFFE))
