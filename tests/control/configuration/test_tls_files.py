import dataclasses
import datetime
import ipaddress
import json
import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from framegate.control.configuration import tls_files as module
from framegate.control.configuration.document import ConfigurationError, Fault
from framegate.control.configuration.tls_files import (
    describe,
    describe_files,
    describe_revocations,
    facts_from_row,
    first_stores,
    read_tls_files,
    short_fingerprint,
    shown_of,
    tls_files,
    validity_of,
)
from framegate.control.demo.certificates import Certificates, create
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls
from tests.control.configuration.test_tls_rules import pem
from tests.fakes.certificates import Authority

PLAIN = ProxyConfig(
    node="n",
    listeners=(ListenerConfig(name="plain", address="127.0.0.1:0", upstream="u"),),
    upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",)),),
)


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return create(tmp_path)


def config_of(made: Certificates) -> ProxyConfig:
    server = ListenerTls(certificate=str(made.server), key=str(made.server_key), client_auth="required", client_ca=str(made.ca))
    client = UpstreamTls(ca=str(made.ca), certificate=str(made.client), key=str(made.client_key))
    listener = dataclasses.replace(PLAIN.listeners[0], name="tls", tls=server)
    upstream = dataclasses.replace(PLAIN.upstreams[0], tls=client)
    return dataclasses.replace(PLAIN, listeners=(*PLAIN.listeners, listener), upstreams=(upstream,))


def test_files_of_certificates_for_hosts_and_revocation_lists_are_read_too(made: Certificates, tmp_path: Path) -> None:
    config = config_of(made)
    authority = Authority(tmp_path)
    lists = (authority.revocations(), authority.revocations())
    named = NamedCertificate(
        names=("a",), certificate=str(made.client), key=str(made.client_key), client_ca=str(authority.path), crl=(lists[1], str(tmp_path / "none"))
    )
    assert config.listeners[1].tls is not None
    tls = dataclasses.replace(config.listeners[1].tls, client_ca=str(authority.path), crl=lists[:1], certificates=(named,))
    config = dataclasses.replace(config, listeners=(dataclasses.replace(config.listeners[1], tls=tls),))
    with pytest.raises(ConfigurationError) as caught:
        read_tls_files(config)
    assert [fault.key for fault in caught.value.faults] == ["listeners[0].tls.certificates[0].crl[1]"]
    (tmp_path / "none").write_text("no list")
    with pytest.raises(ConfigurationError, match=r"revocation list .*none"):
        read_tls_files(config)
    (tmp_path / "none").write_bytes(Path(authority.revocations(str(made.client))).read_bytes())
    assert {*lists, str(authority.path), str(made.client)} <= set(read_tls_files(config))


def test_files_that_are_gone_are_named_all(made: Certificates) -> None:
    config = config_of(made)
    made.server.unlink()
    made.client_key.unlink()
    with pytest.raises(ConfigurationError) as caught:
        read_tls_files(config)
    assert caught.value.faults == [
        Fault(0, "listeners[1].tls.certificate", str(made.server), "cannot be read: No such file or directory"),
        Fault(0, "upstreams[0].tls.key", str(made.client_key), "cannot be read: No such file or directory"),
    ]


def test_what_changed_since_it_was_validated_and_no_longer_fits_is_a_fault(made: Certificates) -> None:
    config = config_of(made)
    shutil.copy(made.client_key, made.server_key)
    made.ca.write_text("rubbish")
    with pytest.raises(ConfigurationError) as caught:
        read_tls_files(config)
    assert [fault.key for fault in caught.value.faults] == ["listeners[1].tls", "upstreams[0].tls"]
    assert "KEY_VALUES_MISMATCH" in caught.value.faults[0].reason
    assert f"authorities {made.ca}" in caught.value.faults[1].reason


def test_files_without_an_end_are_not_read_to_it(made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)
    config = config_of(dataclasses.replace(made, server_key=Path("/dev/zero")))
    with pytest.raises(ConfigurationError, match=r"listeners\[1\].tls.key = /dev/zero: .* more than 1 MiB together"):
        read_tls_files(config)


def test_each_owner_has_a_store_and_validity_of_certificates(made: Certificates) -> None:
    config = config_of(made)
    files = read_tls_files(config)
    certificates = describe_files(files)
    stores = first_stores(config, files, certificates)
    assert {owner: (store.number, list(store.files)) for owner, store in stores.items()} == {
        "listener/tls": (1, [str(made.server), str(made.server_key), str(made.ca)]),
        "upstream/u": (1, [str(made.ca), str(made.client), str(made.client_key)]),
    }
    (server,) = certificates[str(made.server)]
    assert stores["listener/tls"].shown == server.fingerprint[:16]
    named = tls_files(config)
    assert [item.key for item in named if item.name == "key"] == ["listeners[1].tls.key", "upstreams[0].tls.key"]
    listener, upstream = config.listeners[1].tls, config.upstreams[0].tls
    assert listener is not None
    assert upstream is not None
    named_too = dataclasses.replace(listener, certificates=(NamedCertificate(names=("b", "c"), certificate=str(made.client), key="k"),))
    (client,) = certificates[str(made.client)]
    assert validity_of("listener/tls", named_too, certificates) == {
        "listener/tls": (server.begins, server.ends),
        "listener/tls/b": (client.begins, client.ends),
    }
    without = dataclasses.replace(upstream, certificate=None, key=None)
    assert (validity_of("upstream/u", without, certificates), shown_of(without, certificates)) == ({}, "")
    assert certificates[str(made.server_key)] == []


KEY = ec.generate_private_key(ec.SECP256R1())
BEGIN = datetime.datetime(1990, 1, 1)


def seconds(moment: datetime.datetime) -> float:
    return moment.replace(tzinfo=datetime.UTC).timestamp()


def test_times_of_a_certificate_are_read_and_other_text_is_refused() -> None:
    for year in (1999, 2026, 2049, 2050, 2068, 2070, 9999):
        end = datetime.datetime(year, 12, 31, 23, 59, 59)
        assert [(item.begins, item.ends) for item in describe(pem(BEGIN, end))] == [(seconds(BEGIN), seconds(end))]
    for text in (b"", b"nothing", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"):
        with pytest.raises(ValueError, match=r"PEM|parsing"):
            describe(text)


def test_every_certificate_of_a_file_is_read_in_order() -> None:
    one, other = (datetime.datetime(2020, 2, 3), datetime.datetime(2030, 1, 1)), (datetime.datetime(2055, 2, 3), datetime.datetime(2060, 1, 1))
    key = KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    text = "a comment in Latin-1: é\n".encode("latin-1") + pem(*one) + key + b"between\n" + pem(*other)
    assert [(item.begins, item.ends) for item in describe(text)] == [tuple(map(seconds, one)), tuple(map(seconds, other))]


def test_facts_of_a_certificate_are_read_and_equal_names_have_equal_text() -> None:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "Test"), x509.NameAttribute(x509.NameOID.COMMON_NAME, "a, b")])
    names = [
        x509.DNSName("Broker.example.org"),
        x509.IPAddress(ipaddress.ip_address("::1")),
        x509.UniformResourceIdentifier("spiffe://example.org/a"),
        x509.RFC822Name("a@example.org"),
        x509.RegisteredID(x509.ObjectIdentifier("1.2.3")),
        x509.DirectoryName(subject),
        x509.OtherName(x509.ObjectIdentifier("1.2.4"), b"\x05\x00"),
    ]
    builder = x509.CertificateBuilder(subject, subject, KEY.public_key(), 0xABC, BEGIN, datetime.datetime(2030, 1, 1))
    made = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(KEY, hashes.SHA256())
    (facts,) = describe(made.public_bytes(serialization.Encoding.PEM))
    assert facts.names == (
        "DNS:broker.example.org",
        "IP:::1",
        "URI:spiffe://example.org/a",
        "directory:CN=a\\, b,O=Test",
        "email:a@example.org",
        "id:1.2.3",
        "other:1.2.4:0500",
    )
    assert (facts.subject, facts.issuer, facts.serial) == ("CN=a\\, b,O=Test", "CN=a\\, b,O=Test", "abc")
    assert facts.fingerprint.startswith(short_fingerprint(facts.fingerprint))
    assert len(short_fingerprint(facts.fingerprint)) == 16
    assert facts_from_row(json.loads(json.dumps(dataclasses.asdict(facts)))) == facts
    assert describe(pem(BEGIN, datetime.datetime(2030, 1, 1)))[0].names == ()


def test_what_revocation_lists_say(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    day = datetime.timedelta(days=1)
    text = b"\n".join(Path(authority.revocations(ends=ends)).read_bytes() for ends in (day, -day))
    late, early = describe_revocations(b"a comment\n" + text)
    assert late.ends - early.ends == 2 * day.total_seconds()
    assert early.begins < early.ends < late.ends
    maker = describe(authority.path.read_bytes())[0]
    assert {item.issuer for item in (late, early)} == {maker.subject}
    assert len({item.fingerprint for item in (late, early, maker)}) == 3
    assert describe_revocations(b"nothing") == []
    with pytest.raises(ValueError, match=r"PEM|pars"):
        describe_revocations(b"-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----")
