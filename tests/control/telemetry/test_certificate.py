"""The ends of the certificates that a configuration names."""

import dataclasses
import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from control.telemetry.certificate import served_ends
from proxy.config.model import ListenerTls, UpstreamTls
from tests.fakes.plane import fake_config

KEY = ec.generate_private_key(ec.SECP256R1())


def pem(end: datetime.datetime, name: str = "x") -> str:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), x509.random_serial_number(), datetime.datetime(1990, 1, 1), end)
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


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
