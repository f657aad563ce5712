"""Certificates, keys and authorities that are replaced while a whole framegate runs."""

import datetime
import hashlib
import json
import os
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate, Witness
from tests.fakes.mounted import WAYS, Mounted, Way
from tests.fakes.upstream import ask

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # each file that is replaced is judged in a process of its own

SWAPS = int(os.environ.get("FRAMEGATE_TEST_SWAPS", "4"))
PATIENCE_S = 60.0
DAY = datetime.timedelta(days=1)
Row = dict[str, Any]


class Renewed:
    """A framegate with two processors whose listener's files are replaced."""

    def __init__(self, folder: Path, plain: Row, way: Way = "rename", rotation: Row | None = None, **tls: Any) -> None:
        self.authority = Authority(folder)
        certificate, key = self.authority.leaf_pem("server")
        self.mounted = Mounted(folder / "tls", way, {"tls.crt": certificate, "tls.key": key})
        self.context = ssl.create_default_context(cafile=str(self.authority.path))
        files = {"certificate": self.mounted.path("tls.crt"), "key": self.mounted.path("tls.key")}
        config = {
            **plain,
            "processors": 2,
            "rotation": {"poll": "100ms", "grace": "500ms", **(rotation or {})},
            "listeners": [{**plain["listeners"][0], "tls": {**files, **tls}}],
        }
        self.proxy = Framegate(folder, config)

    def renew(self, **leaf: Any) -> str:
        """Another certificate with its key; the beginning of its fingerprint."""
        certificate, key = self.authority.leaf_pem("server", **leaf)
        self.mounted.replace({"tls.crt": certificate, "tls.key": key})
        return fingerprint(certificate)

    def replaced(self, count: int = 1) -> None:
        self.proxy.wait_row(lambda row: self.count("files_replaced") >= count, PATIENCE_S)

    def refused(self, count: int) -> Row:
        self.proxy.wait_row(lambda row: self.count("files_refused") >= count, PATIENCE_S)
        return self.proxy.events("files_refused")[count - 1]

    def count(self, event: str) -> int:
        return sum(row["event"] == event for row in self.proxy.rows)

    def served(self) -> str:
        """The fingerprint of what a new connection meets."""
        with self.proxy.connect("plain", self.context) as client:
            assert isinstance(client, ssl.SSLSocket)
            der = client.getpeercert(binary_form=True)
            assert der is not None
            return hashlib.sha256(der).hexdigest()[:16]

    def list(self) -> list[Row]:
        found: list[Row] = self.proxy.json("certificates", "list")
        return found


def fingerprint(pem: bytes) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem.decode())).hexdigest()[:16]


@pytest.fixture
def renewed(tmp_path: Path, plain: Row) -> Iterator[Renewed]:
    made = Renewed(tmp_path, plain)
    yield made
    made.proxy.stop()


class Crowd:
    """Connects, sends a frame, takes it back and goes, 200 times a second; ``done`` counts the connections that were served."""

    def __init__(self, renewed: Renewed) -> None:
        self.done = 0
        self.failures: list[str] = []
        self._renewed = renewed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(due - time.monotonic(), 0)):
            try:
                with self._renewed.proxy.connect("plain", self._renewed.context) as client:
                    assert ask(client, b"here") == b"here"
                self.done += 1
            except Exception as error:
                self.failures.append(repr(error))
            due += 1 / 200

    def __enter__(self) -> "Crowd":
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join(20)


@pytest.mark.timeout(120 + 10 * SWAPS)
@pytest.mark.parametrize("way", [WAYS[0], *(pytest.param(way, marks=pytest.mark.extended) for way in WAYS[1:])])
def test_nobody_is_refused_while_certificates_are_replaced_and_who_is_connected_stays(tmp_path: Path, plain: Row, way: Way) -> None:
    renewed = Renewed(tmp_path, plain, way)
    with renewed.proxy as proxy, Witness(proxy, "plain", renewed.context) as witness:
        (first,) = {row["fingerprint"][:16] for row in renewed.list()}
        with Crowd(renewed) as crowd:
            for number in range(1, SWAPS + 1):
                latest = renewed.renew()
                renewed.replaced(number)
            witness.check()
        assert (crowd.failures, crowd.done > SWAPS) == ([], True)
        assert renewed.served() == latest
        (row,) = renewed.list()
        assert (row["fingerprint"][:16], row["store_number"], row["error"]) == (latest, SWAPS + 1, "")
        (open_row,) = proxy.json("channels", "list")
        assert open_row["tls"]["certificate_fingerprint"] == first
        assert renewed.count("files_refused") == 0


@pytest.mark.extended
def test_what_is_no_good_changes_nothing_and_is_told_and_what_follows_is_taken(renewed: Renewed) -> None:
    proxy, before = renewed.proxy, renewed.served()
    good = {name: Path(renewed.mounted.path(name)).read_bytes() for name in ("tls.crt", "tls.key")}
    expired, key = renewed.authority.leaf_pem("server", lifetime=(-9 * DAY, -DAY))
    early, early_key = renewed.authority.leaf_pem("server", lifetime=(DAY, 9 * DAY))
    other, other_key = renewed.authority.leaf_pem("other")
    nameless, nameless_key = renewed.authority.leaf_pem("server", hosts=("elsewhere",))
    wrong = [
        ({"tls.crt": expired, "tls.key": key}, "tls.crt", "expired on"),
        ({"tls.crt": early, "tls.key": early_key}, "tls.crt", "is not valid before"),
        ({"tls.crt": other, "tls.key": other_key}, "tls.crt", "changed_subject"),
        ({"tls.crt": nameless, "tls.key": nameless_key}, "tls.crt", "DNS:localhost"),
        ({"tls.crt": good["tls.crt"], "tls.key": other_key}, "tls.key", "is not the key of the certificate"),
        ({"tls.crt": b"rubbish", "tls.key": other_key}, "tls.crt", "holds no certificate"),
    ]
    for number, (files, file, reason) in enumerate(wrong, 1):
        renewed.mounted.replace(files)
        row = renewed.refused(number)
        assert reason in row["reason"]
        assert (row["owner"], row["kind"], row["file"]) == ("listener/plain", "tls", renewed.mounted.path(file))
        assert renewed.served() == before
    assert "holds no certificate" in renewed.list()[0]["error"]
    assert "is not in force" in proxy.cli("status").stdout
    os.unlink(renewed.mounted.path("tls.key"))
    proxy.wait_row(lambda row: row["event"] == "files_refused" and "No such file" in row["reason"], PATIENCE_S)
    assert renewed.served() == before
    assert proxy.metric("framegate_reload_count_total", framegate_file_kind="tls", error_type="refused") == len(wrong) + 1
    renewed.mounted.replace(good)
    proxy.wait_row(lambda row: row["event"] == "files_restored", PATIENCE_S)
    latest = renewed.renew()
    renewed.replaced()
    assert renewed.served() == latest
    assert renewed.list()[0]["error"] == ""
    assert renewed.count("files_refused") == len(wrong) + 1
    printed = json.dumps(proxy.rows) + json.dumps(renewed.list())
    for pem in (good["tls.key"], key, early_key, other_key, nameless_key):
        assert not any(line in printed for line in pem.decode().splitlines()[1:-1]), "some of a key was told"


def test_a_command_and_sighup_take_files_at_once_and_a_processor_that_starts_has_what_is_in_force(tmp_path: Path, plain: Row) -> None:
    renewed = Renewed(tmp_path, plain, rotation={"poll": "1h"})
    with renewed.proxy as proxy:
        end = proxy.metric("framegate_tls_certificate_not_after_seconds")
        latest = renewed.renew(lifetime=(-DAY, 30 * DAY))
        assert [(row["owner"], row["result"]) for row in proxy.json("certificates", "reload")] == [("listener/plain", "RESULT_REPLACED")]
        assert renewed.served() == latest
        assert proxy.metric("framegate_tls_certificate_not_after_seconds") < end
        assert "the first expires in 29d" in proxy.cli("status").stdout
        renewed.mounted.replace({"tls.key": b"rubbish"})
        refused = proxy.cli("certificates", "reload")
        assert refused.returncode == 1
        assert "holds no private key" in refused.stdout
        for pid in proxy.processors:
            os.kill(pid, signal.SIGKILL)
        proxy.wait_row(lambda row: sum(item["event"] == "processor_ready" for item in proxy.rows) >= 4, PATIENCE_S)
        assert {renewed.served() for _ in range(4)} == {latest}
        latest = renewed.renew()
        proxy.process.send_signal(signal.SIGHUP)
        row = proxy.wait_row(lambda row: row["event"] == "reloaded", PATIENCE_S)
        assert row["replaced"] == ["listener/plain (tls)"]
        assert renewed.served() == latest


def test_authorities_that_are_replaced_let_in_others_and_nobody_else(tmp_path: Path, plain: Row) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    ca = Mounted(tmp_path / "ca", "rename", {"ca.crt": old.path.read_bytes()})
    renewed = Renewed(tmp_path, plain, client_auth="required", client_ca=ca.path("ca.crt"))
    contexts = {}
    for name, authority in (("old", old), ("new", new)):
        contexts[name] = ssl.create_default_context(cafile=str(renewed.authority.path))
        contexts[name].load_cert_chain(*authority.leaf(f"{name} client"))
    with renewed.proxy as proxy, proxy.connect("plain", contexts["old"]) as stays:
        assert echoes(stays)
        assert not welcome(proxy, contexts["new"])
        ca.replace({"ca.crt": new.path.read_bytes()})
        renewed.replaced()
        assert welcome(proxy, contexts["new"])
        assert not welcome(proxy, contexts["old"])
        assert echoes(stays), "who is connected stays"


def echoes(client: Any) -> bool:
    return ask(client, b"x") == b"x"


def welcome(proxy: Framegate, context: ssl.SSLContext) -> bool:
    try:
        with proxy.connect("plain", context) as client:
            return echoes(client)
    except (ssl.SSLError, ConnectionError):
        return False


@pytest.mark.extended
def test_who_runs_on_an_old_certificate_ends_within_max_age_and_others_do_not(tmp_path: Path, plain: Row) -> None:
    renewed = Renewed(tmp_path, plain, max_age="2s")
    with renewed.proxy as proxy, proxy.connect("plain", renewed.context) as old:
        assert echoes(old)
        renewed.renew()
        renewed.replaced()
        replaced_at = time.monotonic()
        with Witness(proxy, "plain", renewed.context) as witness:
            row = proxy.closed_row(old)
            assert time.monotonic() - replaced_at >= 0.8
            assert (row["cause"], row["detail"]) == ("drained", "its certificate was replaced")
            witness.check()


@pytest.mark.extended
def test_who_has_a_certificate_that_is_revoked_ends_and_others_go_on(tmp_path: Path, plain: Row) -> None:
    authority = Authority(tmp_path, "clients")
    crl = tmp_path / "in-force.crl"
    crl.write_bytes(Path(authority.revocations()).read_bytes())
    renewed = Renewed(tmp_path, plain, client_auth="required", client_ca=str(authority.path), crl=[str(crl)])
    context = ssl.create_default_context(cafile=str(renewed.authority.path))
    leaves = {name: authority.leaf(name) for name in ("good", "stolen")}
    with renewed.proxy:
        clients = {}
        for name, leaf in leaves.items():
            context.load_cert_chain(*leaf)
            clients[name] = [renewed.proxy.connect("plain", context) for _ in range(4)]
        assert all(map(echoes, (*clients["good"], *clients["stolen"])))
        crl.write_bytes(Path(authority.revocations(leaves["stolen"][0])).read_bytes())
        renewed.replaced()
        rows = [renewed.proxy.ended_row(client) for client in clients["stolen"]]
        assert {(row["cause"], row["detail"]) for row in rows} == {("session_expired", "the certificate is revoked")}
        assert all(map(echoes, clients["good"]))
