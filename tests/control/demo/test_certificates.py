"""Throw-away certificates: a client that trusts the authority reaches the server, nobody else is believed."""

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from framegate.control.demo import certificates
from tests.fakes.certificates import Authority


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> ssl.SSLObject:
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
def made(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.create(tmp_path_factory.mktemp("certificates"))


def server_context(made: certificates.Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)
    context.load_verify_locations(made.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_both_sides_trust_each_other(made: certificates.Certificates, name: str) -> None:
    client = ssl.create_default_context(cafile=str(made.ca))
    client.load_cert_chain(made.client, made.client_key)
    assert handshake(server_context(made), client, name).version() == "TLSv1.3"


def strict_client(authority: Path) -> ssl.SSLContext:
    """What Python 3.13 and newer make by default; older ones when they are asked."""
    context = ssl.create_default_context(cafile=str(authority))
    context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def test_strict_verification_accepts_them_on_both_sides(made: certificates.Certificates) -> None:
    server, client = server_context(made), strict_client(made.ca)
    server.verify_flags |= ssl.VERIFY_X509_STRICT
    client.load_cert_chain(made.client, made.client_key)
    assert handshake(server, client, "localhost").version() == "TLSv1.3"


def test_strict_verification_accepts_what_the_tests_make(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*authority.leaf("server"))
    server.load_verify_locations(authority.path)
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VERIFY_X509_STRICT
    client = strict_client(authority.path)
    client.load_cert_chain(*authority.leaf("client"))
    assert handshake(server, client, "localhost").version() == "TLSv1.3"


def test_another_name_is_refused(made: certificates.Certificates) -> None:
    client = ssl.create_default_context(cafile=str(made.ca))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(made), client, "example.com")


def test_a_server_certificate_is_no_client(made: certificates.Certificates) -> None:
    client = ssl.create_default_context(cafile=str(made.ca))
    client.load_cert_chain(made.server, made.server_key)
    with pytest.raises(ssl.SSLError):
        handshake(server_context(made), client, "localhost")


def test_keys_are_for_their_owner_only_and_the_authority_leaves_none(made: certificates.Certificates) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in (made.server_key, made.client_key)} == {0o600}
    assert sorted(path.name for path in made.ca.parent.iterdir()) == ["ca.crt", "client.crt", "client.key", "server.crt", "server.key"]


def test_they_end_with_the_day(made: certificates.Certificates) -> None:
    for path in (made.ca, made.server, made.client):
        certificate = x509.load_pem_x509_certificate(Path(path).read_bytes())
        assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days <= 1
