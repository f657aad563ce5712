"""Secrets appear nowhere. A canary goes through each mechanism, each way in which a login can fail and each file, and is then looked for in all that
framegate says: rows, errors, metrics, exports, every answer of the API, the tap's files, command lines and environments of all its processes.

What is looked for is a core of each canary, as it is, in base64 at any place, hexadecimal, percent signs, and escaped as Python and JSON do; of keys
their bytes, likewise. Core files are none: their limit is 0, which is looked at.
"""

import base64
import contextlib
import json
import os
import resource
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from google.protobuf import message_factory
from google.protobuf.json_format import MessageToJson

from framegate.control.identity.users_file import read_users
from framegate.control.v1 import user_service_pb2
from framegate.control.v1.certificate_service_pb2 import ReloadCertificatesRequest
from framegate.control.v1.certificate_service_pb2_grpc import CertificateServiceStub
from framegate.control.v1.user_service_pb2_grpc import UserServiceStub
from tests.control.service.test_access import RPCS
from tests.fakes.canaries import Canaries
from tests.fakes.framegate import run_cli
from tests.fakes.secretive import (
    USER,
    Secretive,
    WatchedProcesses,
    broken_frames,
    client_context,
    in_clear,
    let_in,
    passed_through,
    refused,
    to_upstreams,
    wrong_logins,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # a whole framegate, some hundred logins with their hashes, and reloads of certificates


# --- what lies in files --------------------------------------------------------------------------------------------------------------------


def broken_files(rig: Secretive) -> dict[Path, list[bytes]]:
    """What files are replaced with that is no good, with canaries in it."""
    new, word = rig.canaries.text, rig.canaries.word
    users = (rig.folder / "users").read_bytes()
    passphrase = new("passphrase").encode()
    encrypted = rig.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(passphrase)
    )
    key = rig.certificates.server_key.read_bytes()
    return {
        rig.folder / "users": [
            users + f"alice {word('users: a password')} x\n".encode(),
            users + f"{word('users: a name')} {word('users: a mechanism')} {word('users: a credential')}\n".encode(),
            users + f"bob SCRAM-SHA-256 salt={word('users: a salt')},stored_key=x,server_key=y,iterations=4096\n".encode(),
            users.replace(b"iterations=4096", f"iterations={word('users: iterations')}".encode()),
            f"alice:{word('users: another form')}\n".encode(),
            f"framegate-users 1 decoy={word('users: a decoy')}\n".encode(),
            users + new("users: not UTF-8").encode() + b"\xff\n",
        ],
        rig.folder / "jwks.json": [
            json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "d": word("jwks: private"), "x": "AA", "y": "AA"}]}).encode(),
            json.dumps({"keys": [{"kty": "oct", "k": word("jwks: shared")}]}).encode(),
            json.dumps({"keys": [{"kty": "RSA", "n": word("jwks: modulus"), "e": "AQAB"}]}).encode(),
            json.dumps({"keys": {"a": word("jwks: no list")}}).encode(),
            b'{"keys": [{"kty": "' + word("jwks: not JSON").encode(),
        ],
        rig.certificates.server_key: [
            key.replace(b"\n", f"\n{word('key: broken')}\n".encode(), 1),
            encrypted,
            b"-----BEGIN PRIVATE KEY-----\n" + word("key: short").encode() + b"\n-----END PRIVATE KEY-----\n",
            new("key: no PEM").encode(),
        ],
        rig.certificates.server: [key, f"-----BEGIN CERTIFICATE-----\n{word('certificate: broken')}\n-----END CERTIFICATE-----\n".encode()],
    }


def reload_all(rig: Secretive) -> None:
    """Each of them is refused, by command and by the watcher, and is put right again."""
    with rig.proxy.api() as channel:
        stub = CertificateServiceStub(channel)
        for path, contents in broken_files(rig).items():
            good = path.read_bytes()
            for content in contents:
                path.write_bytes(content)
                answer = stub.ReloadCertificates(ReloadCertificatesRequest(reason="a test"), timeout=30)
                note(rig, answer)
                assert any(item.result == item.RESULT_REFUSED for item in answer.reloads), (path.name, content[:40])
            ask_all(rig)
            path.write_bytes(good)
            answer = stub.ReloadCertificates(ReloadCertificatesRequest(), timeout=30)
            assert not any(item.result == item.RESULT_REFUSED for item in answer.reloads), path.name
    rig.proxy.process.send_signal(signal.SIGHUP)
    rig.proxy.wait_row(lambda row: row["event"] == "reloaded")


# --- what is said --------------------------------------------------------------------------------------------------------------------------


def note(rig: Secretive, message: Any) -> None:
    rig.answers.extend((message.SerializeToString(), MessageToJson(message).encode()))


def ask_all(rig: Secretive) -> int:
    """Every method that shows something, and what the metrics are; how many methods answered."""
    names = {"ListenerService": "sasl", "UpstreamService": "open", "TapService": "all"}
    with rig.proxy.api() as channel:
        found = 0
        for path, rpc in RPCS.items():
            service = path.rpartition("/")[0].rpartition(".")[2]
            if not rpc.name.startswith(("Get", "List", "Explain")) or rpc.name in ("GetChannel", "ExplainChannel"):
                continue
            request = message_factory.GetMessageClass(rpc.input_type)()
            fields = rpc.input_type.fields_by_name
            if "name" in fields:
                request.name = names[service]
            if "listener" in fields and service != "ChannelService":
                request.listener = "through" if service == "KafkaRuleService" else "sasl"
            if "page_size" in fields:
                request.page_size = 1000
            call = channel.unary_unary(
                f"/{path}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=message_factory.GetMessageClass(rpc.output_type).FromString,
            )
            note(rig, call(request, timeout=10))
            found += 1
        return found


def bad_users(rig: Secretive) -> None:
    """Users over the API that are refused: what is told of it."""
    item = read_users(rig.folder / "users").users[USER]["SCRAM-SHA-256"]
    credential = user_service_pb2.Credential(
        mechanism=user_service_pb2.SCRAM_MECHANISM_SHA_256, iterations=1, salt=b"x", stored_key=item.stored_key, server_key=item.server_key + b"x"
    )
    with rig.proxy.api() as channel:
        for name, one in (("bob", credential), (USER, credential)):
            request = user_service_pb2.CreateUserRequest(listener="sasl", user=user_service_pb2.User(name=name, credentials=[one]))
            with pytest.raises(grpc.RpcError) as caught:
                UserServiceStub(channel).CreateUser(request, timeout=10)
            metadata = caught.value.trailing_metadata()  # type: ignore[attr-defined]
            rig.answers.append(repr((caught.value, metadata)).encode())


def everything_said(rig: Secretive) -> dict[str, bytes]:
    """All of it, by where it was said; framegate has ended."""
    files = [path for path in (rig.folder / "tap").rglob("*") if path.is_file()]
    return {
        "rows": json.dumps(rig.proxy.rows, ensure_ascii=False).encode(),
        "standard error": rig.proxy.errors.encode(),
        "answers": b"\n".join(rig.answers),
        "exports": b"\n".join(received.request.SerializeToString() for received in rig.collector.received),
        "tap": b"\n".join(path.read_bytes() for path in files),
    }


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Secretive, dict[str, bytes]]]:
    """A framegate after all of that, ended, and all that it said."""
    with contextlib.ExitStack() as undo:
        rig = Secretive(tmp_path_factory.mktemp("secrets"), undo)
        with WatchedProcesses(rig.proxy.process.pid) as watched:
            let_in(rig)
            clients = [*wrong_logins(rig), *broken_frames(rig)]
            for listener, context in (("sasl", None), ("tls", client_context(rig))):
                for client in clients:
                    refused(rig, listener, client, context)
            for client in in_clear(rig):
                refused(rig, "tls", client)
            passed_through(rig)
            to_upstreams(rig)
            bad_users(rig)
            answered = ask_all(rig)
            reload_all(rig)
            with urllib.request.urlopen(f"http://{rig.proxy.serving['prometheus']}/metrics", timeout=10) as answer:
                rig.answers.append(answer.read())
            core = {resource.prlimit(pid, resource.RLIMIT_CORE)[0] for pid in (rig.proxy.process.pid, *rig.proxy.processors)}
            rig.collector.nth()
            assert rig.proxy.stop() == 0
        found = everything_said(rig)
        found["processes"] = b"\n".join(b"\n".join(data) for data in watched.seen.values())
        found["commands"] = "\n".join(watched.commands()).encode()
        found["core limit"] = repr(core).encode()
        found["methods"] = str(answered).encode()
        yield rig, found


# --- tests ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["rows", "standard error", "answers", "exports", "tap", "processes"])
def test_no_secret_is_anywhere(said: tuple[Secretive, dict[str, bytes]], where: str) -> None:
    rig, found = said
    assert rig.canaries.found(found[where]) == []


@pytest.mark.parametrize("where", ["rows", "answers", "tap", "exports"])
def test_what_may_be_said_is_found_there_by_the_same_search(said: tuple[Secretive, dict[str, bytes]], where: str) -> None:
    rig, found = said
    assert rig.marker.found(found[where]) == ["marker"]
    assert {received.signal for received in rig.collector.received} == {"metrics", "trace", "logs"}
    assert int(found["methods"]) >= 15


def test_all_that_can_fail_has_failed(said: tuple[Secretive, dict[str, bytes]]) -> None:
    rig, _ = said
    closed = rig.proxy.events("closed")
    causes = {row["cause"] for row in closed}
    assert {"auth_failed", "tls_failed", "wrong_protocol", "peer_closed"} <= causes
    words = "\n".join(row["detail"] for row in closed)
    for reason in (
        "wrong password",
        "no such user",
        "its signature is wrong",
        "expired",
        "not a signed token",
        "its words hold a secret",
        "where 3 belong",
    ):
        assert reason in words, reason
    assert len(rig.proxy.events("files_refused")) >= 18
    assert not [row for row in rig.proxy.rows if row["event"] in ("task_failed", "row_failed", "subscriber_failed")]


def test_all_processes_were_looked_at(said: tuple[Secretive, dict[str, bytes]]) -> None:
    for command in (b"serve --config", b"framegate.proxy.server", b"framegate.proxy.handler", b"framegate.control.rotation.questions"):
        assert command in said[1]["commands"], command


def test_no_process_leaves_a_core(said: tuple[Secretive, dict[str, bytes]]) -> None:
    assert said[1]["core limit"] == b"{0}"


def test_a_start_that_fails_tells_no_secret(tmp_path: Path) -> None:
    canaries = Canaries()
    word = canaries.word
    files = {
        "users": f"framegate-users 1 decoy=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\nalice {word('users')} x\n",
        "jwks": json.dumps({"keys": [{"kty": "EC", "d": word("jwks")}]}),
        "password": f"{word('password')}\n{word('password, second')}\n",
        "readable": word("readable by all"),
        "token": word("token") + "\0",
        "key": f"-----BEGIN PRIVATE KEY-----\n{word('key')}\n-----END PRIVATE KEY-----\n",
        "certificate": f"-----BEGIN CERTIFICATE-----\n{word('certificate')}\n-----END CERTIFICATE-----\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o644 if name == "readable" else 0o600)
    tokens = {"jwks": "jwks", "issuer": "i", "audience": "a", "secret": word("unknown key of tokens")}
    common = {"address": "127.0.0.1:0", "upstream": "u", "protocol": "kafka"}
    identities = [
        {"principals": ["a"], "mechanism": "PLAIN", "user": "x", "password_file": "password"},
        {"principals": ["b"], "mechanism": "PLAIN", "user": "x", "password_file": "readable"},
        {"principals": ["c"], "mechanism": "PLAIN", "user": "x", "password": word("inline")},
        {"principals": ["d"], "mechanism": "OAUTHBEARER", "token_file": "token"},
        word("no mapping"),
    ]
    config = {
        "node": "n",
        "listeners": [
            {"name": "a", **common, "sasl": {"mechanisms": ["PLAIN"], "users": "users"}},
            {"name": "b", **common, "sasl": {"mechanisms": ["OAUTHBEARER"], "tokens": tokens}},
            {"name": "c", **common, "tls": {"certificate": "certificate", "key": "key", "key_password": word("key password")}},
            {"name": "d", **common, "sasl": word("sasl")},
        ],
        "upstreams": [{"name": "u", "endpoints": ["127.0.0.1:1"], "sasl": {"identities": identities}}],
    }
    (tmp_path / "framegate.yaml").write_text(json.dumps(config))
    for command in ("check", "serve"):
        done = run_cli(command, "--config", str(tmp_path / "framegate.yaml"))
        assert done.returncode == 2
        assert (done.stdout + done.stderr).count("is not a known key") == 3
        assert canaries.found(done.stdout + done.stderr) == []


@pytest.mark.parametrize("write", [str, lambda text: text.encode().hex(), json.dumps, lambda text: str(text.encode())])
def test_the_search_finds_what_is_there(write: Callable[[str], str]) -> None:
    canaries = Canaries()
    text = canaries.text("a")
    canaries.text("b")
    canaries.keep("key", os.urandom(32))
    assert canaries.found(f"xx {write(text)} yy") == ["a"]


def test_the_search_finds_keys() -> None:
    canaries, key = Canaries(), os.urandom(32)
    canaries.keep("key", key)
    for before in range(3):
        assert canaries.found(base64.b64encode(bytes(before) + key + b"x")) == ["key"]
    for written in (key, key.hex(), str(key), str(list(key)), json.dumps(key.decode("latin-1"))):
        assert canaries.found(written) == ["key"], written
    assert canaries.found(os.urandom(1000)) == []


@pytest.mark.extended
@pytest.mark.spark
def test_no_secret_is_in_what_spark_reads(said: tuple[Secretive, dict[str, bytes]], spark: "SparkSession") -> None:
    from framegate.proxy.pipeline.pyspark_framegate import register

    rig, _ = said
    register(spark)
    read = spark.read.format("framegate")
    rows = [row for kind in ("chunks", "frames") for row in read.option("rows", kind).load(str(rig.folder / "tap")).collect()]
    text = "\n".join(repr(row.asDict(recursive=True)) for row in rows)
    raw = b"\n".join(bytes(value) for row in rows for value in row if isinstance(value, bytes | bytearray))
    assert rig.marker.found(raw) == ["marker"]
    assert rig.canaries.found(text) == []
    assert rig.canaries.found(raw) == []
