"""framegate.proxy.auth.certificate_names: what cryptography writes is read, and garbage is refused."""

import contextlib
import datetime
import ipaddress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from framegate.proxy.auth.certificate_names import alternative_names
from framegate.proxy.errors import AuthenticationError
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


@each_of("critical", [False, True])
def test_each_kind_in_the_order_of_the_certificate(critical: bool) -> None:
    data = certificate(*NAMES, critical=critical)
    assert alternative_names(data, "dns") == ["a.example", "*.b.example", "d" * 60 + ".example." + "e" * 60]
    assert alternative_names(data, "uri") == ["spiffe://cluster/ns/a/sa/b"]
    assert alternative_names(data, "email") == ["a@example.org"]


def test_without_the_extension_there_is_none() -> None:
    assert alternative_names(certificate(), "uri") == []


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
