"""The end of a certificate, against a library that reads all of it."""

import dataclasses
import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from control.telemetry.certificate import Certificates, not_after
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


def test_files_are_read_again_when_they_change_and_left_out_when_they_are_gone(tmp_path: Path) -> None:
    served, shown = tmp_path / "served.pem", tmp_path / "shown.pem"
    config = fake_config("unix:unused", None)
    listener = dataclasses.replace(config.listeners[0], tls=ListenerTls(certificate=str(served), key="k"))
    upstream = dataclasses.replace(config.upstreams[0], tls=UpstreamTls(certificate=str(shown), key="k"))
    certificates = Certificates(dataclasses.replace(config, listeners=(listener,), upstreams=(upstream,)))
    served.write_text(pem(datetime.datetime(2030, 1, 1)))
    assert list(certificates.ends()) == ["listener/kafka"]
    shown.write_text(pem(datetime.datetime(2031, 1, 1)))
    served.unlink()
    assert list(certificates.ends()) == ["upstream/brokers"]
    other = tmp_path / "other.pem"
    other.write_text(pem(datetime.datetime(2035, 1, 1)))
    other.rename(shown)
    assert certificates.ends() == {"upstream/brokers": datetime.datetime(2035, 1, 1, tzinfo=datetime.UTC).timestamp()}
