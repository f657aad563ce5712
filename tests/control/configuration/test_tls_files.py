import dataclasses
import shutil
from pathlib import Path

import pytest

from framegate.control.configuration import tls_files as module
from framegate.control.configuration.document import ConfigurationError, Fault
from framegate.control.configuration.tls_files import describe_files, ends_of, first_stores, read_tls_files, shown_of, tls_files
from framegate.control.demo.certificates import Certificates, create
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls
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


def test_who_has_which_store_and_when_it_ends(made: Certificates) -> None:
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
    assert ends_of("listener/tls", named_too, certificates) == {"listener/tls": server.ends, "listener/tls/b": client.ends}
    without = dataclasses.replace(upstream, certificate=None, key=None)
    assert (ends_of("upstream/u", without, certificates), shown_of(without, certificates)) == ({}, "")
    assert certificates[str(made.server_key)] == []
