"""The end of a certificate, against a library that reads all of it."""

import dataclasses
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from control.telemetry.certificate import not_after, served_ends
from proxy.config.model import ListenerTls, UpstreamTls
from tests.fakes.plane import fake_config

KEY = ec.generate_private_key(ec.SECP256R1())


def pem(end: datetime.datetime, name: str = "x") -> str:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), x509.random_serial_number(), datetime.datetime(1990, 1, 1), end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("year", [1999, 2026, 2049, 2050, 2068, 2070, 9999])
def test_it_is_what_the_certificate_says(year: int) -> None:
    text = pem(datetime.datetime(year, 12, 31, 23, 59, 59))
    assert not_after(text) == x509.load_pem_x509_certificate(text.encode()).not_valid_after_utc.timestamp()


def test_the_first_of_a_chain_counts() -> None:
    first, second = pem(datetime.datetime(2030, 1, 1)), pem(datetime.datetime(2040, 1, 1))
    assert not_after("text before\n" + first + second) == not_after(first)


@pytest.mark.parametrize("text", ["", "nothing", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="certificate"):
        not_after(text)


def test_the_ends_are_those_of_what_was_read_at_the_start() -> None:
    config = fake_config("unix:unused", None)
    listener = dataclasses.replace(config.listeners[0], tls=ListenerTls(certificate="served", key="k"))
    upstreams = (
        dataclasses.replace(config.upstreams[0], tls=UpstreamTls(certificate="shown", key="k")),
        dataclasses.replace(config.upstreams[0], name="other", tls=UpstreamTls(ca="ca")),
    )
    files = {"served": pem(datetime.datetime(2030, 1, 1)), "shown": pem(datetime.datetime(2031, 1, 1)), "k": "a key", "ca": "x"}
    config = dataclasses.replace(config, listeners=(listener, config.listeners[1]), upstreams=upstreams)
    assert served_ends(config, files) == {
        "listener/kafka": datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC).timestamp(),
        "upstream/brokers": datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC).timestamp(),
    }
    assert list(served_ends(config, {**files, "served": "-----BEGIN TRUSTED CERTIFICATE-----"})) == ["upstream/brokers"]
