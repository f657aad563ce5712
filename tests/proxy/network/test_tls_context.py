"""proxy.network.tls_context: what is refused before anybody connects."""

import os
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


def test_what_was_read_before_counts_and_not_the_file(tls_world: TlsWorld, tmp_path: Path) -> None:
    names = (*tls_world.server, tls_world.authority)
    files = {f"/nowhere/{index}": Path(name).read_bytes() for index, name in enumerate(names)}
    before = set(os.listdir("/proc/self/fd"))
    context = server_context("/nowhere/0", "/nowhere/1", client_auth="required", client_ca="/nowhere/2", files=files)
    assert context.cert_store_stats()["x509_ca"] == 1
    assert client_context(ca="/nowhere/2", certificate="/nowhere/0", key="/nowhere/1", files=files).cert_store_stats()["x509_ca"] == 1
    assert set(os.listdir("/proc/self/fd")) == before


def test_faults_of_what_was_read_before_name_the_file_it_came_from(tls_world: TlsWorld) -> None:
    files = {"a.crt": Path(tls_world.server[0]).read_bytes(), "a.key": b"no key", "ca.crt": b""}
    with pytest.raises(ConfigError, match=r"certificate a\.crt with key a\.key"):
        server_context("a.crt", "a.key", files=files)
    with pytest.raises(ConfigError, match=r"authorities ca\.crt"):
        client_context(ca="ca.crt", files=files)
    with pytest.raises(ConfigError, match=r"b\.key was not sent"):
        server_context("a.crt", "b.key", files=files)
