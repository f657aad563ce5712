"""What certificates say."""

import dataclasses
import datetime
import ipaddress
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from framegate.control.configuration.certificate import describe, describe_revocations, facts_from_row, short_fingerprint
from tests.fakes.certificates import Authority

KEY = ec.generate_private_key(ec.SECP256R1())
BEGIN = datetime.datetime(1990, 1, 1)


def pem(end: datetime.datetime, begin: datetime.datetime = BEGIN) -> bytes:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), x509.random_serial_number(), begin, end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def seconds(moment: datetime.datetime) -> float:
    return moment.replace(tzinfo=datetime.UTC).timestamp()


def test_it_is_what_the_certificate_says_and_what_is_none_is_refused() -> None:
    for year in (1999, 2026, 2049, 2050, 2068, 2070, 9999):
        end = datetime.datetime(year, 12, 31, 23, 59, 59)
        assert [(item.begins, item.ends) for item in describe(pem(end))] == [(seconds(BEGIN), seconds(end))]
    for text in (b"", b"nothing", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"):
        with pytest.raises(ValueError, match=r"PEM|parsing"):
            describe(text)


def test_every_certificate_of_a_file_is_told_in_order_whatever_stands_between_them() -> None:
    one, other = (datetime.datetime(2020, 2, 3), datetime.datetime(2030, 1, 1)), (datetime.datetime(2055, 2, 3), datetime.datetime(2060, 1, 1))
    key = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    text = "a comment in Latin-1: é\n".encode("latin-1") + pem(one[1], one[0]) + key + b"between\n" + pem(other[1], other[0])
    assert [(item.begins, item.ends) for item in describe(text)] == [tuple(map(seconds, one)), tuple(map(seconds, other))]


def test_what_a_certificate_says_is_told_and_names_that_mean_the_same_are_the_same() -> None:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Test"), x509.NameAttribute(x509.NameOID.COMMON_NAME, "a, b")])
    names = [
        x509.DNSName("Broker.example.org"),
        x509.IPAddress(ipaddress.ip_address("::1")),
        x509.UniformResourceIdentifier("spiffe://example.org/a"),
        x509.RFC822Name("a@example.org"),
        x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
        x509.DirectoryName(subject),
        x509.OtherName(x509.ObjectIdentifier("1.2.4"), b"\x05\x00"),
    ]
    builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), 0xABC, BEGIN, datetime.datetime(2030, 1, 1))
    made = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(KEY, hashes.SHA256())
    (facts,) = describe(made.public_bytes(serialization.Encoding.PEM))
    assert facts.names == (
        "DNS:broker.example.org",
        "IP:::1",
        "URI:spiffe://example.org/a",
        "directory:CN=a\\, b,O=Test",
        "email:a@example.org",
        "id:1.2.3",
        "other:1.2.4:0500",
    )
    assert (facts.subject, facts.issuer, facts.serial) == ("CN=a\\, b,O=Test", "CN=a\\, b,O=Test", "abc")
    assert facts.fingerprint.startswith(short_fingerprint(facts.fingerprint))
    assert len(short_fingerprint(facts.fingerprint)) == 16
    assert facts_from_row(json.loads(json.dumps(dataclasses.asdict(facts)))) == facts
    assert describe(pem(datetime.datetime(2030, 1, 1)))[0].names == ()


def test_what_revocation_lists_say(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    day = datetime.timedelta(days=1)
    text = b"\n".join(Path(authority.revocations(ends=ends)).read_bytes() for ends in (day, -day))
    late, early = describe_revocations(b"a comment\n" + text)
    assert late.ends - early.ends == 2 * day.total_seconds()
    assert early.begins < early.ends < late.ends
    maker = describe(authority.path.read_bytes())[0]
    assert {item.issuer for item in (late, early)} == {maker.subject}
    assert len({item.fingerprint for item in (late, early, maker)}) == 3
    assert describe_revocations(b"nothing") == []
    with pytest.raises(ValueError, match=r"PEM|pars"):
        describe_revocations(b"-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----")
