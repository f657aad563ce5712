"""framegate.proxy.network.tls_context: what is refused before anybody connects."""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from framegate.proxy.config.tls import NamedCertificate
from framegate.proxy.errors import ConfigError
from framegate.proxy.network.tls_context import ServerStore, client_context, server_context, server_store
from tests.fakes.cases import each_of
from tests.fakes.certificates import Authority
from tests.fakes.tls import TlsWorld


def test_contexts_are_hardened(tls_world: TlsWorld) -> None:
    for context in (server_context(*tls_world.server), client_context(ca=tls_world.authority)):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.options & ssl.OP_NO_RENEGOTIATION
    strict = server_context(*tls_world.server, min_version="1.3")
    assert strict.minimum_version == ssl.TLSVersion.TLSv1_3
    assert client_context(ca=tls_world.authority).verify_mode == ssl.CERT_REQUIRED
    assert client_context().check_hostname
    assert tls_world.server_settings().context.num_tickets == 1, "one that is used is replaced by another"


@each_of(("client_auth", "mode"), [("none", ssl.CERT_NONE), ("requested", ssl.CERT_OPTIONAL), ("required", ssl.CERT_REQUIRED)])
def test_client_auth_is_none_requested_or_required(tls_world: TlsWorld, client_auth: str, mode: ssl.VerifyMode) -> None:
    assert server_context(*tls_world.server, client_auth=client_auth, client_ca=tls_world.authority).verify_mode == mode


def test_an_encrypted_key_is_refused_without_a_prompt(tls_world: TlsWorld, tmp_path: Path) -> None:
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


def test_faults_name_the_file(tls_world: TlsWorld, tmp_path: Path) -> None:
    """Read now, or before."""
    certificate, key = tls_world.server
    broken = tmp_path / "broken.pem"
    broken.write_text("not PEM")
    files = {"a.crt": Path(certificate).read_bytes(), "a.key": b"no key", "ca.crt": b""}
    for words, call in (
        (r"missing\.crt", lambda: server_context("missing.crt", key)),
        (r"broken\.pem", lambda: server_context(certificate, str(broken))),
        ("certificate", lambda: server_context(certificate, tls_world.client[1])),
        (r"broken\.pem", lambda: client_context(ca=str(broken))),
        ("client_ca", lambda: server_context(certificate, key, client_auth="required")),
        (r"certificate a\.crt with key a\.key", lambda: server_context("a.crt", "a.key", files=files)),
        (r"authorities ca\.crt", lambda: client_context(ca="ca.crt", files=files)),
        (r"b\.key was not sent", lambda: server_context("a.crt", "b.key", files=files)),
    ):
        with pytest.raises(ConfigError, match=words):
            call()


def test_a_store_is_all_that_the_settings_say(tls_world: TlsWorld, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = tls_world.server
    own = NamedCertificate(names=("A.example.org.",), certificate=certificate, key=key, client_ca=str(authority.path), crl=(authority.revocations(),))
    common = NamedCertificate(names=("*.example.org", "b"), certificate=certificate, key=key)
    asked = {"client_auth": "required", "client_ca": tls_world.authority, "max_version": "1.2", "ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"}
    store = server_store(tls_world.listener(certificates=(own, common), alpn=("kafka",), **asked))
    contexts = [store.default, store.context("a.example.org"), store.context("x.example.org"), store.context("b")]
    assert contexts[2] is contexts[3]
    assert len({id(item) for item in contexts}) == 3
    for context in contexts:
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.maximum_version == ssl.TLSVersion.TLSv1_2
        assert [item["name"] for item in context.get_ciphers() if item["protocol"] == "TLSv1.2"] == ["ECDHE-ECDSA-AES256-GCM-SHA384"]
        assert context.options & ssl.OP_NO_RENEGOTIATION
    assert [bool(item.verify_flags & ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN) for item in contexts] == [False, True, False, False]
    assert (store.reads_hello, store.protocols) == (True, ["kafka"])


def s_client(context: ssl.SSLContext, *words: str) -> str:
    """What OpenSSL's own client says of one handshake."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{listener.getsockname()[1]}", *words]
        client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        accepted, _ = listener.accept()
        with accepted, contextlib.suppress(ssl.SSLError, OSError):
            accepted.settimeout(10)
            context.wrap_socket(accepted, server_side=True).close()
        return client.communicate(timeout=10)[0]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")
@pytest.mark.slow
def test_what_clients_of_tls_1_2_are_offered_without_a_word_in_the_configuration(tls_world: TlsWorld) -> None:
    """No cipher in CBC mode, with which OpenSSL's client would be content. And no names of authorities, which Python's ``ssl`` cannot send: this
    fails on the first Python that can.
    """
    context = server_store(tls_world.listener(client_auth="requested", client_ca=tls_world.authority)).default
    ciphers = context.get_ciphers()
    assert all(item["aead"] for item in ciphers)
    assert {item["protocol"] for item in ciphers} == {"TLSv1.2", "TLSv1.3"}
    refused = s_client(context, "-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-SHA384:ECDHE-ECDSA-AES128-SHA256")
    assert "handshake failure" in refused
    for version in ("-tls1_2", "-tls1_3"):
        said = s_client(context, version)
        assert "GCM" in said
        assert "No client certificate CA names sent" in said


@each_of(
    ("keys", "words"),
    [
        ({"ciphers": "NONE-AT-ALL"}, "ciphers NONE-AT-ALL"),
        ({"curve": "none"}, "curve none"),
        ({"crl": ("/none.crl",)}, r"revocation list /none\.crl"),
        ({"crl": ("AUTHORITY",)}, "there is none in it"),
    ],
)
def test_what_openssl_does_not_take_is_named(tls_world: TlsWorld, keys: dict[str, Any], words: str) -> None:
    if keys.get("crl") == ("AUTHORITY",):
        keys = {"crl": (tls_world.authority,)}
    with pytest.raises(ConfigError, match=words):
        server_store(tls_world.listener(client_auth="required", client_ca=tls_world.authority, **keys))


@pytest.mark.parametrize("sent", [True, False])
def test_the_same_list_twice_is_one_and_a_file_without_a_list_is_a_fault(tls_world: TlsWorld, tmp_path: Path, sent: bool) -> None:
    lists = Authority(tmp_path).revocations()

    def store(*crl: str) -> ServerStore:
        tls = tls_world.listener(client_auth="required", client_ca=tls_world.authority, crl=crl)
        paths = (tls.certificate, tls.key, tls_world.authority, *crl)
        return server_store(tls, {path: Path(path).read_bytes() for path in paths} if sent else None)

    assert store(lists, lists).default.cert_store_stats()["crl"] == 1
    with pytest.raises(ConfigError, match="there is none in it"):
        store(lists, tls_world.authority)


DEFAULT, EXACT, BELOW = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(3))
STORE = ServerStore(DEFAULT, {"a.example.org": EXACT, "*.example.org": BELOW, "b.org": EXACT})


@each_of(
    ("host", "context"),
    [
        ("a.example.org", EXACT),
        ("other.example.org", BELOW),
        ("b.org", EXACT),
        ("x.b.org", DEFAULT),
        ("example.org", DEFAULT),
        ("two.labels.example.org", DEFAULT),
        ("*.example.org", BELOW),
        (".example.org", BELOW),
        ("org", DEFAULT),
        ("", DEFAULT),
    ],
)
def test_the_exact_name_goes_before_the_pattern_and_the_pattern_before_the_default(host: str, context: ssl.SSLContext) -> None:
    assert STORE.context(host) is context


def test_the_first_message_is_read_only_where_something_depends_on_it() -> None:
    assert STORE.reads_hello
    assert ServerStore(DEFAULT, {}, ("kafka",)).reads_hello
    assert not ServerStore(DEFAULT, {}).reads_hello


@each_of(("asked", "agreed"), [([], True), (["kafka"], True), (["h2", "kafka"], True), (["h2"], False)])
def test_a_client_that_names_protocols_must_name_one_of_ours(asked: list[str], agreed: bool) -> None:
    assert ServerStore(DEFAULT, {}, ("kafka", "x")).agrees(asked) is agreed
    assert STORE.agrees(asked)
