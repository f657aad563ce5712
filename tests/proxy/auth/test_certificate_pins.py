"""framegate.proxy.auth.certificate_pins: keys as cryptography sees them."""

import base64
import hashlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from framegate.proxy.auth.certificate_pins import PinnedAuthenticators, key_pin, pin_fault
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import CertificateAuthenticators
from framegate.proxy.network.transport import Identity
from tests.fakes.cases import each_of
from tests.proxy.auth.test_certificate_names import certificate

ONE, OTHER = certificate(), certificate(x509.DNSName("h"))


def pin_of(data: bytes) -> str:
    key = x509.load_der_x509_certificate(data).public_key()
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return "sha256/" + base64.b64encode(hashlib.sha256(der).digest()).decode()


@each_of("data", [ONE, OTHER])
def test_the_pin_of_a_key(data: bytes) -> None:
    assert key_pin(data) == pin_of(data)


def test_who_has_one_of_the_keys_passes_and_others_are_named() -> None:
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
    [
        (pin_of(ONE), None),
        ("sha1/x", "must be sha256/"),
        ("sha256/!", "no base64"),
        ("sha256/YQ==", "has 1 bytes"),
        ("sha256/YQ", "no base64"),
    ],  # a key is made anew each time, and pytest-xdist wants the same names in each process
)
def test_what_is_no_pin_says_why(pin: str, words: str | None) -> None:
    fault = pin_fault(pin)
    assert fault is None if words is None else fault is not None and words in fault
