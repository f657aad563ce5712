"""The audit file of a running framegate: rows of racing changes and of applied files chain, a full disk refuses all but what is urgent, roles on the
command line and of a drain, open connections whose certificate is revoked.
"""

import concurrent.futures
import itertools
import json
import os
import pwd
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.control.v1.event_service_pb2 import WatchEventsRequest
from framegate.control.v1.event_service_pb2_grpc import EventServiceStub
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate, Row, config_before, run_cli
from tests.fakes.small_disk import fill, tiny_disk
from tests.fakes.upstream import ScriptedUpstream
from tests.fakes.waiting import until


@pytest.fixture(scope="module", name="folder")
def with_a_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("framegate")
    with tiny_disk(folder / "disk", 4):
        yield folder


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def proxy(folder: Path, authority: Authority) -> Iterator[Framegate]:
    (folder / "tls").mkdir()
    for source, name in zip((*authority.leaf("ada"), str(authority.path)), ("tls.crt", "tls.key", "ca.crt"), strict=True):
        shutil.copy(source, folder / "tls" / name)
    certificate, key = authority.leaf("server")
    tcp = {"address": "127.0.0.1:0", "certificate": certificate, "key": key, "client_ca": str(authority.path), "crl": [authority.revocations()]}
    admin = {
        "address": "unix:admin.sock",
        "operate": {"address": "unix:operate.sock"},
        "view": {"address": "unix:view.sock"},
        "tcp": {**tcp, "operate": ["RULE:CN=ada,.*"]},
    }
    with ScriptedUpstream() as upstream:
        config = {**config_before(upstream.address), "admin": admin, "rotation": {"poll": "100ms"}, "log": {"audit": {"file": "disk/audit.log"}}}
        with Framegate(folder, config) as running:
            yield running


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def lowered(proxy: Framegate, size: int) -> str:
    """Set a limit; the reason why that is refused, or empty."""
    with proxy.api() as channel:
        try:
            LimitServiceStub(channel).UpdateLimit(pb2.UpdateLimitRequest(limit=pb2.Limit(listener="plain", max_receive_size_bytes=size)))
        except grpc.RpcError as error:
            return str(error.details())  # type: ignore[attr-defined]
    return ""


@pytest.mark.slow
def test_rows_of_racing_changes_chain_and_are_there_when_the_answer_is(proxy: Framegate, folder: Path) -> None:
    path = folder / "disk/audit.log"

    def client(number: int) -> None:
        chance = random.Random(number)
        for _ in range(25):
            size = chance.randrange(1, 1 << 20)
            assert lowered(proxy, size) == ""
            assert {"max_receive_size_bytes": size} in [row["after"] for row in rows(path)]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(client, range(4)))
    path.rename(folder / "disk/audit.log.1")
    assert lowered(proxy, 77) == ""
    found = [*rows(folder / "disk/audit.log.1"), *rows(path)]
    assert len(found) == 101
    sizes = [(row["before"]["max_receive_size_bytes"], row["after"]["max_receive_size_bytes"]) for row in found]
    assert all(after == before for (_, after), (before, _) in itertools.pairwise(sizes))
    until(lambda: [row["after"] for row in proxy.events("audit")] == [row["after"] for row in found], "stdout has the same")


@pytest.mark.slow
def test_a_full_disk_refuses_what_raises_a_limit_and_makes_what_lowers_it_later(proxy: Framegate, folder: Path) -> None:
    if not (folder / "disk").is_mount():
        pytest.skip("no disk can be mounted here")
    assert lowered(proxy, 5000) == ""
    fill(folder / "disk/filler")
    sizes = iter(range(5001, 5100))
    while not (refusal := lowered(proxy, next(sizes))):
        """The row has the room that was allocated before."""
    assert refusal.endswith("audit.log: No space left on device")
    assert lowered(proxy, 4000) == ""
    assert proxy.cli("channels", "mute", "--filter", "listener=plain", "--reason", "incident").returncode == 0
    assert proxy.cli("channels", "unmute", "--filter", "listener=plain").returncode == 1
    assert proxy.cli("limits", "get").returncode == 0
    (folder / "disk/filler").unlink()
    assert lowered(proxy, 6000) == ""
    found = [(row["method"].rpartition("/")[2], (row["after"] or {}).get("max_receive_size_bytes")) for row in rows(folder / "disk/audit.log")]
    assert found[-3:] == [("UpdateLimit", 4000), ("MuteChannels", None), ("UpdateLimit", 6000)]
    levels = [row["level"] for row in proxy.events("audit_file")]
    assert levels == ["error", "info"] * (len(levels) // 2), "told once, and once that it is over"
    assert levels


@pytest.mark.slow
def test_the_command_line_has_the_role_of_its_socket_or_of_its_certificate(proxy: Framegate, folder: Path) -> None:
    view, tcp = f"unix:{folder}/view.sock", str(proxy.serving["admin_tcp"]).replace("127.0.0.1", "localhost")
    assert run_cli("limits", "get", "--address", view).returncode == 0
    done = run_cli("limits", "set", "--listener", "plain", "--max-receive-size", "1000", "--address", view)
    text = f"UpdateLimit needs the role operate, and this caller has the role view; the socket unix:{folder}/operate.sock has it (ROLE_NEEDED)"
    assert (done.returncode, done.stderr) == (1, f"framegate: {text}\n")
    words = ("limits", "set", "--listener", "plain", "--max-receive-size", "1000", "--address", tcp)
    done = run_cli(*words, "--tls", str(folder / "tls"))
    assert done.returncode == 0, done.stderr
    row = until(lambda: rows(folder / "disk/audit.log"))[-1]
    assert (row["who"], row["role"], row["after"]) == ("CN=ada,O=Test", "operate", {"max_receive_size_bytes": 1000})
    assert "--tls" in run_cli(*words).stderr, "without it"


@pytest.mark.extended
@pytest.mark.slow
def test_files_and_texts_that_are_applied_have_rows_that_chain_and_none_is_applied_without_one(proxy: Framegate, folder: Path) -> None:
    path, new = folder / "framegate.yaml", folder / "new.yaml"

    def write(to: Path, size: int) -> None:
        to.write_text(json.dumps({**proxy.config, "listeners": [{**proxy.config["listeners"][0], "max_receive_size": size}]}))

    assert proxy.reload().startswith("applied")
    before = len(rows(folder / "disk/audit.log"))
    for number in range(6):
        if number % 2:
            write(path, 70_000 + number)
            assert proxy.reload() == "applied, 1 value changed"
        else:
            write(new, 70_000 + number)
            done = proxy.cli("config", "apply", str(new), "--reason", "larger")
            assert done.returncode == 0, done.stderr
    found = [row for row in rows(folder / "disk/audit.log")[before:] if row["after"] is not None]  # the command line checks a file first
    key = "listeners[plain].max_receive_size"
    assert [row["who"] == "SIGHUP" for row in found] == [False, True] * 3
    assert all(row["before"].keys() == row["after"].keys() == {key} for row in found)
    assert all(later["before"] == earlier["after"] for earlier, later in itertools.pairwise(found))
    if not (folder / "disk").is_mount():
        return
    fill(folder / "disk/filler")
    write(new, 80_000)
    until(lambda: "AUDIT_BLOCKED" in proxy.cli("config", "apply", str(new)).stderr, timeout=30)
    write(path, 80_001)
    assert "audit row cannot be written" in proxy.reload()
    assert proxy.events("configuration_refused")[-1]["reason"].endswith("No space left on device")
    assert int(proxy.json("limits", "get")[0]["max_receive_size_bytes"]) in (70_005, 80_000)
    (folder / "disk/filler").unlink()
    assert proxy.reload() == "applied, 1 value changed"
    assert rows(folder / "disk/audit.log")[-1]["after"] == {key: "80001B"}


@pytest.mark.slow
def test_an_open_connection_over_tcp_ends_when_its_certificate_is_revoked(proxy: Framegate, folder: Path, authority: Authority) -> None:
    tcp = str(proxy.serving["admin_tcp"]).replace("127.0.0.1", "localhost")
    of_its_own = authority.leaf("ada")
    certificate, key, authorities = (Path(path).read_bytes() for path in (*of_its_own, folder / "tls/ca.crt"))
    with grpc.secure_channel(tcp, grpc.ssl_channel_credentials(authorities, key, certificate)) as channel:
        watched = EventServiceStub(channel).WatchEvents(WatchEventsRequest())
        assert next(watched).resume_token
        os.replace(authority.revocations(str(of_its_own[0])), proxy.config["admin"]["tcp"]["crl"][0])
        with pytest.raises(grpc.RpcError):
            list(watched)
        with pytest.raises(grpc.RpcError) as caught:
            LimitServiceStub(channel).ListLimits(pb2.ListLimitsRequest(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    assert proxy.events("files_replaced")[-1]["owner"] == "admin/tcp"


@pytest.mark.slow
def test_a_drain_needs_the_role_admin_works_on_a_full_disk_and_says_whom_the_kernel_knows(proxy: Framegate, folder: Path) -> None:
    for role in ("view", "operate"):
        done = run_cli("drain", "--address", f"unix:{folder}/{role}.sock")
        assert (done.returncode, "(ROLE_NEEDED)" in done.stderr) == (1, True), role
    assert proxy.events("drain_began") == []
    if (folder / "disk").is_mount():
        fill(folder / "disk/filler")
    done = proxy.cli("drain", "--reason", "the node is replaced")
    assert done.returncode == 0, done.stderr
    (row,) = proxy.events("drain_began")
    assert (row["by"], row["reason"]) == (pwd.getpwuid(os.geteuid()).pw_name, "the node is replaced")
    for role, words in (("view", ("status",)), ("operate", ("limits", "set", "--listener", "plain", "--max-receive-size", "1000"))):
        done = run_cli(*words, "--address", f"unix:{folder}/{role}.sock")
        assert done.returncode == 0, f"{role} goes on while it drains: {done.stderr}"
    (folder / "disk/filler").unlink(missing_ok=True)
    found = until(lambda: [row for row in rows(folder / "disk/audit.log") if row["method"].endswith("/DrainProxy")])
    assert [(row["role"], row["result"]) for row in found] == [("admin", "OK")]
