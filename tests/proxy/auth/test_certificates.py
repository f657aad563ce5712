"""framegate.proxy.auth.certificates: names and keys that cryptography writes are read, garbage is refused, and names become principals."""

import base64
import contextlib
import datetime
import hashlib
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.auth.certificates import MappedAuthenticators, PinnedAuthenticators, alternative_names, key_pin, pin_fault
from framegate.proxy.auth.mapping_rules import MappingRules
from framegate.proxy.config.tls import NameSource
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import ANONYMOUS, CertificateAuthenticators
from framegate.proxy.network.transport import Identity
from tests.fakes.cases import each_of

NAMES = (
    x509.DNSName("a.example"),
    x509.UniformResourceIdentifier("spiffe://cluster/ns/a/sa/b"),
    x509.RFC822Name("a@example.org"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.DirectoryName(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "c" * 64)])),
    x509.DNSName("*.b.example"),
    x509.DNSName("d" * 60 + ".example." + "e" * 60),
)


def certificate(*names: x509.GeneralName, critical: bool = False) -> bytes:
    """With these alternative names, in DER form."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "client")])
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1 << 150)
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(1))
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


GOOD = certificate(*NAMES)


@each_of("data", [GOOD, certificate(*NAMES, critical=True)])
def test_each_kind_in_the_order_of_the_certificate(data: bytes) -> None:
    assert alternative_names(data, "dns") == ["a.example", "*.b.example", "d" * 60 + ".example." + "e" * 60]
    assert alternative_names(data, "uri") == ["spiffe://cluster/ns/a/sa/b"]
    assert alternative_names(data, "email") == ["a@example.org"]
    assert alternative_names(certificate(), "uri") == [], "without the extension"


@each_of("bad", [b"\0", b" ", b"\x7f", b"\xff"])
def test_a_name_that_could_be_taken_for_another_is_refused(bad: bytes) -> None:
    data = GOOD.replace(b"a@example.org", b"a@example" + bad + b"org")
    with pytest.raises(AuthenticationError, match="email name"):
        alternative_names(data, "email")
    assert alternative_names(data, "uri"), "the others are not asked for"


def test_what_is_cut_is_refused_or_has_no_names() -> None:
    for size in range(len(GOOD)):
        with pytest.raises(AuthenticationError):
            alternative_names(GOOD[:size], "dns")


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=4))
def test_garbage_is_refused_or_read(position: int, noise: bytes) -> None:
    try:
        names = alternative_names(GOOD[:position] + noise + GOOD[position + len(noise) :], "dns")
    except AuthenticationError:
        return
    assert all(name.isascii() for name in names)


@given(st.binary(max_size=60))
def test_random_bytes_are_no_certificate(data: bytes) -> None:
    with contextlib.suppress(AuthenticationError):
        assert isinstance(alternative_names(data, "uri"), list)


# Principals.

SPIFFE = certificate(x509.UniformResourceIdentifier("https://a"), x509.UniformResourceIdentifier("spiffe://td/ns/x/sa/y"), x509.DNSName("h"))


def test_the_principal_is_the_subject_or_the_first_alternative_name_that_a_rule_matches() -> None:
    made = MappedAuthenticators(MappingRules("RULE:CN=(.*?),.*/$1/L")).make(Identity(subject="CN=Alice,O=x"))
    assert (made.complete, made.principal) == (True, "alice")
    identity = Identity(subject="CN=a", certificate=SPIFFE)
    assert MappedAuthenticators(MappingRules("RULE:spiffe:\\/\\/td\\/(.*)/$1/"), "uri").make(identity).principal == "ns/x/sa/y"
    assert MappedAuthenticators(MappingRules(), "uri").make(identity).principal == "https://a"
    assert MappedAuthenticators(MappingRules(), "dns").make(identity).principal == "h"


@each_of("source", ["subject", "uri"])
def test_a_client_without_a_certificate_is_anonymous_whatever_the_rules(source: NameSource) -> None:
    assert MappedAuthenticators(MappingRules(""), source).make(Identity()).principal == ANONYMOUS


@each_of(
    ("rules", "source", "words"),
    [
        ("RULE:CN=b/b/", "subject", "no rule matches the subject name 'CN=a'"),
        ("RULE:.*//", "subject", "an empty one"),
        ("DEFAULT", "email", "has no email name"),
        ("RULE:spiffe:.*x/a/", "uri", "no rule matches the uri name 'https://a', 'spiffe://td/ns/x/sa/y'"),
    ],
)
def test_a_certificate_without_a_name_that_a_rule_matches_is_refused(rules: str, source: NameSource, words: str) -> None:
    with pytest.raises(AuthenticationError, match=words):
        MappedAuthenticators(MappingRules(rules), source).make(Identity(subject="CN=a", certificate=SPIFFE))
    with pytest.raises(AuthenticationError, match="has no subject name"):
        MappedAuthenticators(MappingRules()).make(Identity(subject="", certificate=SPIFFE))


# Pins.

ONE, OTHER = certificate(), certificate(x509.DNSName("h"))


def pin_of(data: bytes) -> str:
    key = x509.load_der_x509_certificate(data).public_key()
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return "sha256/" + base64.b64encode(hashlib.sha256(der).digest()).decode()


def test_a_certificate_with_a_pinned_key_passes_and_others_are_named() -> None:
    assert [key_pin(data) for data in (ONE, OTHER)] == [pin_of(ONE), pin_of(OTHER)]
    factory = PinnedAuthenticators((pin_of(ONE), "sha256/next"), CertificateAuthenticators())
    assert factory.make(Identity(subject="CN=broker", certificate=ONE)).principal == "CN=broker"
    with pytest.raises(AuthenticationError, match=r"'CN=other' has the key sha256/.*, which is none of pins"):
        factory.make(Identity(subject="CN=other", certificate=OTHER))
    with pytest.raises(AuthenticationError, match="there is no certificate"):
        factory.make(Identity())


@each_of("data", [b"", b"\x30\x00", b"\x30\x02\x30\x00", ONE[:200]])
def test_what_is_no_certificate_is_refused(data: bytes) -> None:
    with pytest.raises(AuthenticationError, match="cannot be read"):
        key_pin(data)


@each_of(
    ("pin", "words"),
    [(pin_of(ONE), None), ("sha1/x", "must be sha256/"), ("sha256/!", "no base64"), ("sha256/YQ==", "has 1 bytes"), ("sha256/YQ", "no base64")],
)
def test_what_is_no_pin_says_why(pin: str, words: str | None) -> None:
    fault = pin_fault(pin)
    assert fault is None if words is None else fault is not None and words in fault
