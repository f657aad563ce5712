"""Certificates for this machine: a client that trusts the authority reaches the server, and nothing else is trusted."""

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from framegate.control.demo.certificates import Certificates, create
from tests.fakes.certificates import Authority


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost") -> ssl.SSLObject:
    """A handshake in memory; returns the client's side."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    client_side = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for side in (client_side, server_side):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    client_side.do_handshake()
    server_side.do_handshake()
    return client_side


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return create(tmp_path_factory.mktemp("certificates"))


def contexts(authority: Path, server: tuple[object, object], client: tuple[object, object], *, strict: bool) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server that wants certificates, and of a client. Strict: as Python 3.13 and newer make them by default."""
    serving, calling = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(authority))
    serving.load_verify_locations(authority)
    serving.verify_mode = ssl.CERT_REQUIRED
    for context, (certificate, key) in ((serving, server), (calling, client)):
        context.load_cert_chain(str(certificate), str(key))
        if strict:
            context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return serving, calling


def test_both_sides_trust_each_other_by_strict_rules_as_well(made: Certificates, tmp_path: Path) -> None:
    pairs = (made.server, made.server_key), (made.client, made.client_key)
    for name in ("localhost", "127.0.0.1"):
        assert handshake(*contexts(made.ca, *pairs, strict=False), name).version() == "TLSv1.3"
    assert handshake(*contexts(made.ca, *pairs, strict=True)).version() == "TLSv1.3"
    tests = Authority(tmp_path)
    assert handshake(*contexts(tests.path, tests.leaf("server"), tests.leaf("client"), strict=True)).version() == "TLSv1.3"


def test_another_name_and_a_servers_certificate_as_a_client_are_refused(made: Certificates) -> None:
    server, client = (made.server, made.server_key), (made.client, made.client_key)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(*contexts(made.ca, server, client, strict=False), "example.com")
    with pytest.raises(ssl.SSLError):
        handshake(*contexts(made.ca, server, server, strict=False))


def test_keys_are_for_their_owner_only_and_certificates_end_with_the_day(made: Certificates) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in (made.server_key, made.client_key)} == {0o600}
    assert sorted(path.name for path in made.ca.parent.iterdir()) == ["ca.crt", "client.crt", "client.key", "server.crt", "server.key"]
    for path in (made.ca, made.server, made.client):
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days <= 1
