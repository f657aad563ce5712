"""framegate.control.configuration.tls_rules: what a start would fail at, or clients, is told with its key."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from framegate.control.configuration.document import Fault, document_of
from framegate.control.configuration.load import judge
from framegate.control.demo.certificates import Certificates
from tests.fakes.certificates import Authority
from tests.fakes.configuration import put

PIN = "sha256/" + "A" * 43 + "="


def found(data: dict[str, Any]) -> tuple[list[Fault], list[Fault]]:
    findings = judge(document_of(data), machine=True)
    return [fault for fault in findings.faults if "tls" in fault.key], [fault for fault in findings.warnings if "tls" in fault.key]


def certificate(made: Certificates, *names: str, **more: Any) -> dict[str, Any]:
    return {"names": list(names), "certificate": str(made.server), "key": str(made.server_key), **more}


def test_everything_at_once_without_a_fault(data: dict[str, Any], made: Certificates, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    lists = [authority.revocations()]
    leaf = authority.leaf("named", hosts=("b", "*.c"))
    identity = {"certificate": leaf[0], "key": leaf[1]}
    data["listeners"][0]["tls"] |= {
        "client_ca": str(authority.path),
        "crl": lists,
        "max_version": "1.3",
        "ciphers": "ECDHE+AESGCM",
        "curve": "prime256v1",
        "alpn": ["kafka"],
        "certificates": [certificate(made, "Localhost."), {"names": ["b", "*.c"], **identity, "client_ca": str(authority.path), "crl": lists}],
    }
    data["upstreams"][0]["tls"]["pins"] = [PIN]
    assert found(data) == ([], [])


def test_a_host_that_its_certificate_does_not_have_is_told(data: dict[str, Any], made: Certificates, tmp_path: Path) -> None:
    good = ("a.example.org", "x.b.example.org", "*.b.example.org", "C.example.org.")
    leaf = Authority(tmp_path).leaf("named", hosts=("a.example.org", "*.b.example.org", "c.example.org"))
    entry = {"names": [*good, "b.example.org", "*.example.org"], "certificate": leaf[0], "key": leaf[1]}
    data["listeners"][0]["tls"]["certificates"] = [entry]
    faults, warnings = found(data)
    assert faults == []
    assert [fault.key for fault in warnings] == [f"listeners[0].tls.certificates[0].names[{number}]" for number in (4, 5)]
    assert warnings[0].reason.startswith("is no name of named.crt, which has a.example.org, *.b.example.org, c.example.org")


def test_a_certificate_without_other_names_has_its_common_name(data: dict[str, Any], tmp_path: Path) -> None:
    leaf = Authority(tmp_path).leaf("plain.example.org", hosts=(), addresses=())
    data["listeners"][0]["tls"]["certificates"] = [{"names": ["plain.example.org"], "certificate": leaf[0], "key": leaf[1]}]
    assert found(data) == ([], [])


@pytest.mark.parametrize(
    ("place", "value", "key", "words"),
    [
        ("listeners.0.tls.max_version", "1.1", "max_version", "must be '1.2' or '1.3'"),
        ("listeners.0.tls.ciphers", "NONSENSE", "ciphers", "names no cipher"),
        ("listeners.0.tls.ciphers", "ECDHE+AESGCM:aNULL@SECLEVEL=0", "ciphers", "do not prove who we are: ADH-"),
        ("listeners.0.tls.ciphers", "eNULL:@SECLEVEL=0", "ciphers", "do not encrypt"),
        ("listeners.0.tls.curve", "ed25519000", "curve", "is no group"),
        ("listeners.0.tls.alpn", [""], "alpn[0]", "1 to 255 ASCII"),
        ("listeners.0.tls.alpn", ["x" * 256], "alpn[0]", "1 to 255 ASCII"),
        ("listeners.0.tls.crl", ["/none"], "crl[0]", "cannot be read"),
        ("listeners.0.tls.crl", ["/etc/hostname"], "crl[0]", "holds no revocation list"),
    ],
)
def test_what_openssl_would_refuse(data: dict[str, Any], place: str, value: Any, key: str, words: str) -> None:
    faults, _ = found(put(data, place, value))
    assert [fault.key for fault in faults] == [f"listeners[0].tls.{key}"]
    assert words in faults[0].reason


def test_versions_that_leave_none(data: dict[str, Any]) -> None:
    data["listeners"][0]["tls"] |= {"min_version": "1.3", "max_version": "1.2"}
    assert [(fault.key, fault.reason) for fault in found(data)[0]] == [
        ("listeners[0].tls.min_version", "leaves no version: the lowest is 1.3, the highest 1.2")
    ]


@pytest.mark.parametrize(
    ("names", "place", "words"),
    [
        (["127.0.0.1"], 0, "is no host"),
        (["a", "*.*.b"], 1, "is no host"),
        (["*"], 0, "is no host"),
        (["a b"], 0, "is no host"),
        (["x" * 64], 0, "is no host"),
        (["a.b", "A.b."], 1, "is already used by listeners[0].tls.certificates[0].names[0]"),
    ],
)
def test_hosts_that_nobody_asks_for_or_that_are_named_twice(
    data: dict[str, Any], made: Certificates, names: list[str], place: int, words: str
) -> None:
    data["listeners"][0]["tls"]["certificates"] = [certificate(made, *names)]
    faults, _ = found(data)
    assert [fault.key for fault in faults] == [f"listeners[0].tls.certificates[0].names[{place}]"]
    assert words in faults[0].reason


def test_what_a_certificate_for_hosts_needs(data: dict[str, Any], made: Certificates, tmp_path: Path) -> None:
    lists = Authority(tmp_path).revocations()
    entry = certificate(made, crl=[lists]) | {"key": str(made.client_key)}
    data["listeners"][0]["tls"]["certificates"] = [entry]
    assert [fault.key.removeprefix("listeners[0].tls.certificates[0].") for fault in found(data)[0]] == ["crl", "key", "names"]


def test_a_list_that_has_ended_is_told(data: dict[str, Any], tmp_path: Path) -> None:
    lists = Authority(tmp_path).revocations(ends=-datetime.timedelta(days=1))
    faults, warnings = found(put(data, "listeners.0.tls.crl", [lists]))
    assert faults == []
    assert [fault.key for fault in warnings] == ["listeners[0].tls.crl[0]"]
    assert "every client of its authority is refused" in warnings[0].reason


def test_what_has_no_effect_is_told(data: dict[str, Any], made: Certificates, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    data["listeners"][0]["tls"] |= {
        "client_auth": "none",
        "min_version": "1.3",
        "ciphers": "ECDHE+AESGCM",
        "certificates": [certificate(made, "localhost", client_ca=str(authority.path))],
    }
    faults, warnings = found(data)
    assert faults == []
    keys = [fault.key.removeprefix("listeners[0].tls.") for fault in warnings]
    assert keys == ["certificates[0].client_ca", "ciphers", "client_ca"]
