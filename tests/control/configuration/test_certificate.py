"""When certificates begin and end, and which of them a configuration serves."""

import dataclasses
import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from control.configuration.certificate import revocation_ends, served_ends, validities
from proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls
from tests.fakes.certificates import Authority
from tests.fakes.plane import fake_config

KEY = ec.generate_private_key(ec.SECP256R1())
BEGIN = datetime.datetime(1990, 1, 1)


def pem(end: datetime.datetime, begin: datetime.datetime = BEGIN) -> bytes:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), x509.random_serial_number(), begin, end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def seconds(moment: datetime.datetime) -> float:
    return moment.replace(tzinfo=datetime.UTC).timestamp()


@pytest.mark.parametrize("year", [1999, 2026, 2049, 2050, 2068, 2070, 9999])
def test_it_is_what_the_certificate_says(year: int) -> None:
    end = datetime.datetime(year, 12, 31, 23, 59, 59)
    assert validities(pem(end)) == [(seconds(BEGIN), seconds(end))]


@pytest.mark.parametrize("text", [b"", b"nothing", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"])
def test_what_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"PEM|parsing"):
        validities(text)


def test_every_certificate_of_a_file_is_told_in_order_whatever_stands_between_them() -> None:
    one, other = (datetime.datetime(2020, 2, 3), datetime.datetime(2030, 1, 1)), (datetime.datetime(2055, 2, 3), datetime.datetime(2060, 1, 1))
    key = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    text = "a comment in Latin-1: é\n".encode("latin-1") + pem(one[1], one[0]) + key + b"between\n" + pem(other[1], other[0])
    assert validities(text) == [tuple(map(seconds, one)), tuple(map(seconds, other))]


def test_the_ends_are_those_of_what_was_read_at_the_start() -> None:
    config = fake_config("unix:unused", None)
    listener = dataclasses.replace(config.listeners[0], tls=ListenerTls(certificate="served", key="k"))
    upstreams = (
        dataclasses.replace(config.upstreams[0], tls=UpstreamTls(certificate="shown", key="k")),
        dataclasses.replace(config.upstreams[0], name="other", tls=UpstreamTls(ca="ca")),
    )
    files = {"served": pem(datetime.datetime(2030, 1, 1)).decode(), "shown": pem(datetime.datetime(2031, 1, 1)).decode(), "k": "a key", "ca": "x"}
    named = NamedCertificate(names=("a.example.org", "b"), certificate="shown", key="k")
    listener = dataclasses.replace(listener, tls=dataclasses.replace(listener.tls, certificates=(named,)))
    config = dataclasses.replace(config, listeners=(listener, config.listeners[1]), upstreams=upstreams)
    assert served_ends(config, files) == {
        "listener/kafka": seconds(datetime.datetime(2030, 1, 1)),
        "listener/kafka/a.example.org": seconds(datetime.datetime(2031, 1, 1)),
        "upstream/brokers": seconds(datetime.datetime(2031, 1, 1)),
    }
    assert list(served_ends(config, {**files, "served": "-----BEGIN TRUSTED CERTIFICATE-----"})) == [
        "listener/kafka/a.example.org",
        "upstream/brokers",
    ]


def test_the_ends_of_revocation_lists(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    day = datetime.timedelta(days=1)
    text = b"\n".join(Path(authority.revocations(ends=ends)).read_bytes() for ends in (day, -day))
    late, early = revocation_ends(b"a comment\n" + text)
    assert late - early == 2 * day.total_seconds()
    assert revocation_ends(b"nothing") == []
    with pytest.raises(ValueError, match=r"PEM|pars"):
        revocation_ends(b"-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----")
