"""proxy.network.tls_context: what is refused before anybody connects."""

import ssl
from pathlib import Path

import pytest

from proxy.errors import ConfigError
from proxy.network.tls_context import client_context, server_context
from tests.fakes.tls import TlsWorld


def test_contexts_are_hardened(tls_world: TlsWorld) -> None:
    for context in (server_context(*tls_world.server), client_context(ca=tls_world.authority)):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION
    strict = server_context(*tls_world.server, min_version="1.3")
    assert strict.minimum_version == ssl.TLSVersion.TLSv1_3
    assert client_context(ca=tls_world.authority).verify_mode == ssl.CERT_REQUIRED
    assert client_context().check_hostname


@pytest.mark.parametrize(("client_auth", "mode"), [("none", ssl.CERT_NONE), ("requested", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)])
def test_client_auth_is_none_requested_or_required(tls_world: TlsWorld, client_auth: str, mode: ssl.VerifyMode) -> None:
    assert server_context(*tls_world.server, client_auth=client_auth, client_ca=tls_world.authority).verify_mode == mode


def test_faults_name_the_file(tls_world: TlsWorld, tmp_path: Path) -> None:
    certificate, key = tls_world.server
    broken = tmp_path / "broken.pem"
    broken.write_text("not PEM")
    with pytest.raises(ConfigError, match=r"missing\.crt"):
        server_context("missing.crt", key)
    with pytest.raises(ConfigError, match=r"broken\.pem"):
        server_context(certificate, str(broken))
    with pytest.raises(ConfigError, match="certificate"):
        server_context(certificate, tls_world.client[1])
    with pytest.raises(ConfigError, match=r"broken\.pem"):
        client_context(ca=str(broken))
    with pytest.raises(ConfigError, match="client_ca"):
        server_context(certificate, key, client_auth="required")


def test_an_encrypted_key_is_refused_and_nobody_is_asked(tls_world: TlsWorld, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    private = serialization.load_pem_private_key(Path(tls_world.server[1]).read_bytes(), None)
    path = tmp_path / "encrypted.key"
    path.write_bytes(
        private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret"))
    )
    with pytest.raises(ConfigError, match="encrypted"):
        server_context(tls_world.server[0], str(path))
