"""proxy.network.distinguished_name: the texts are those of Java's ``X500Principal.getName()``, of the same certificates."""

import contextlib
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, ObjectIdentifier
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import AuthenticationError
from proxy.network.distinguished_name import escape, format_name, subject_of

KEY = ec.generate_private_key(ec.SECP256R1())
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
Attribute = x509.NameAttribute


def certificate_of(*rdns: list[Attribute[str]]) -> bytes:
    """A certificate with this subject, least specific part first."""
    issuer = x509.Name([Attribute(NameOID.COMMON_NAME, "authority")])
    builder = (
        x509.CertificateBuilder(issuer_name=issuer, public_key=KEY.public_key(), serial_number=1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + datetime.timedelta(days=1))
    )
    signed = builder.subject_name(x509.Name([x509.RelativeDistinguishedName(rdn) for rdn in rdns])).sign(KEY, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.DER)


def test_the_most_specific_part_comes_first() -> None:
    name, user = Attribute(NameOID.COMMON_NAME, "a"), Attribute(NameOID.USER_ID, "7")
    found = subject_of(certificate_of([Attribute(NameOID.COUNTRY_NAME, "DE")], [Attribute(NameOID.ORGANIZATION_NAME, "Example")], [name, user]))
    assert found == "CN=a+UID=7,O=Example,C=DE"


def test_a_certificate_without_a_subject() -> None:
    assert subject_of(certificate_of()) == ""


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (NameOID.DOMAIN_COMPONENT, "org", "DC=org"),
        (NameOID.LOCALITY_NAME, "M", "L=M"),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, "u", "OU=u"),
        (NameOID.STATE_OR_PROVINCE_NAME, "BY", "ST=BY"),
        (NameOID.STREET_ADDRESS, "s 1", "STREET=s 1"),
        (NameOID.SERIAL_NUMBER, "1", "2.5.4.5=#130131"),
        (NameOID.TITLE, "boss", "2.5.4.12=#0c04626f7373"),
        (NameOID.EMAIL_ADDRESS, "a@b.c", "1.2.840.113549.1.9.1=#16056140622e63"),
        (ObjectIdentifier("1.2.3.4.5"), "val", "1.2.3.4.5=#0c0376616c"),
        (ObjectIdentifier("2.999.3"), "val", "2.999.3=#0c0376616c"),
    ],
)
def test_attributes_have_names_or_numbers(kind: ObjectIdentifier, value: str, text: str) -> None:
    assert subject_of(certificate_of([Attribute(kind, value)])) == text


def attribute(tag: int, value: bytes) -> bytes:
    """A distinguished name of one common name."""

    def element(tag: int, content: bytes) -> bytes:
        return bytes((tag, len(content))) + content

    return element(0x31, element(0x30, element(6, b"\x55\x04\x03") + element(tag, value)))


@pytest.mark.parametrize(
    ("tag", "value", "text"),
    [
        (0x0C, "ü日".encode(), "CN=ü日"),
        (0x13, b"a b", "CN=a b"),
        (0x14, b"\xfc", "CN=ü"),
        (0x1E, "ü日".encode("utf-16-be"), "CN=ü日"),
        (0x1A, b"vis", "CN=#1a03766973"),
        (0x0C, b"a\xffb", "CN=a\ufffdb"),
    ],
)
def test_kinds_of_text(tag: int, value: bytes, text: str) -> None:
    assert format_name(attribute(tag, value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a b", "a b"),
        (" a ", "\\ a\\ "),
        ("  ", "\\ \\ "),
        ("\rx\r", "\\\rx\\\r"),
        ("#a#", "\\#a\\#"),
        ('a,b+c"d\\e<f>g;h=i', 'a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i'),
        ("a\0b", "a\\00b"),
        ("a\tb", "a\tb"),
        ("ü", "ü"),
        ("", ""),
    ],
)
def test_special_characters_are_escaped(value: str, text: str) -> None:
    assert escape(value) == text


@given(st.integers(0, 400), st.integers(0, 255))
def test_what_is_no_certificate_is_refused_and_nothing_else_happens(place: int, value: int) -> None:
    data = bytearray(certificate_of([Attribute(NameOID.COMMON_NAME, "a")]))
    data[place % len(data)] = value
    with contextlib.suppress(AuthenticationError):
        assert isinstance(subject_of(bytes(data)), str)


@pytest.mark.parametrize("data", [b"", b"\x30\x00", b"\x30\x02\x30\x00", b"\x30\x0c\x30\x0a" + b"\x02\x00" * 5])
def test_what_has_no_place_for_a_subject(data: bytes) -> None:
    with pytest.raises(AuthenticationError, match="cannot be read"):
        subject_of(data)
