import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from framegate.control.rotation.trial import TrialError, try_as_client, try_as_server
from framegate.proxy.network.tls_context import client_context, server_context
from tests.fakes.certificates import Authority


def anchor(pem: bytes) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem.decode())


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("client_auth", ["none", "requested", "required"])
def test_a_good_store_passes(tmp_path: Path, version: str, client_auth: str) -> None:
    authority = Authority(tmp_path)
    pem, key = authority.leaf_pem("a")
    files = {"c": pem, "k": key, "a": authority.path.read_bytes()}
    ca = None if client_auth == "none" else "a"
    try_as_server(server_context("c", "k", client_auth=client_auth, client_ca=ca, min_version=version, files=files), anchor(pem))
    try_as_client(client_context(ca="a", certificate="c", key="k", min_version=version, files=files), anchor(pem))
    try_as_client(client_context(ca="a", min_version=version, files=files), None)


def test_one_that_peers_would_refuse_does_not(tmp_path: Path) -> None:
    pem, key = Authority(tmp_path).leaf_pem("a", lifetime=(-timedelta(days=9), -timedelta(days=1)))
    files = {"c": pem, "k": key}
    with pytest.raises(TrialError, match="expired"):
        try_as_server(server_context("c", "k", files=files), anchor(pem))
    with pytest.raises(TrialError, match="expired"):
        try_as_client(client_context(certificate="c", key="k", files=files), anchor(pem))


def test_one_whose_chain_leads_elsewhere_does_not(tmp_path: Path) -> None:
    pem, key = Authority(tmp_path).leaf_pem("a")
    other = Authority(tmp_path, "other").path.read_bytes()
    with pytest.raises(TrialError, match="unable to get"):
        try_as_server(server_context("c", "k", files={"c": pem, "k": key}), anchor(other))
    with pytest.raises(TrialError):
        try_as_server(server_context("c", "k", files={"c": pem, "k": key}), b"rubbish")
