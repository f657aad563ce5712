"""The ends of the certificates that a configuration names."""

import dataclasses
import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from control.telemetry.certificate import Certificates
from proxy.config.model import ListenerTls, UpstreamTls
from tests.fakes.plane import fake_config

KEY = ec.generate_private_key(ec.SECP256R1())


def pem(end: datetime.datetime, name: str = "x") -> str:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), x509.random_serial_number(), datetime.datetime(1990, 1, 1), end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


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
