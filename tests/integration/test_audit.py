"""The audit file of a running framegate: rows of racing changes chain, a full disk refuses all but what is urgent, roles on the command line."""

import concurrent.futures
import itertools
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from framegate.control.v1 import limit_service_pb2 as pb2
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from tests.fakes.certificates import Authority
from tests.fakes.framegate import Framegate, Row, config_before, run_cli, until
from tests.fakes.small_disk import fill, tiny_disk
from tests.fakes.upstream import ScriptedUpstream


@pytest.fixture(scope="module", name="folder")
def with_a_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("framegate")
    with tiny_disk(folder / "disk"):
        yield folder


@pytest.fixture(scope="module")
def proxy(folder: Path) -> Iterator[Framegate]:
    authority = Authority(folder)
    (folder / "tls").mkdir()
    for source, name in zip((*authority.leaf("ada"), str(authority.path)), ("tls.crt", "tls.key", "ca.crt"), strict=True):
        shutil.copy(source, folder / "tls" / name)
    certificate, key = authority.leaf("server")
    admin = {
        "address": "unix:admin.sock",
        "view": {"address": "unix:view.sock"},
        "tcp": {"address": "127.0.0.1:0", "certificate": certificate, "key": key, "client_ca": str(authority.path), "operate": ["RULE:CN=ada,.*"]},
    }
    with ScriptedUpstream() as upstream:
        config = {**config_before(upstream.address), "admin": admin, "log": {"audit": {"file": "disk/audit.log"}}}
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
    assert [row["after"] for row in proxy.events("audit")] == [row["after"] for row in found], "stdout has the same"


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
    assert [row["level"] for row in proxy.events("audit_file")] == ["error", "info"]


@pytest.mark.slow
def test_the_command_line_has_the_role_of_its_socket_or_of_its_certificate(proxy: Framegate, folder: Path) -> None:
    view, tcp = f"unix:{folder}/view.sock", str(proxy.serving["admin_tcp"]).replace("127.0.0.1", "localhost")
    assert run_cli("limits", "get", "--address", view).returncode == 0
    done = run_cli("limits", "set", "--listener", "plain", "--max-receive-size", "1000", "--address", view)
    text = f"UpdateLimit needs the role operate, and this caller has the role view; the socket unix:{folder}/admin.sock has it (ROLE_NEEDED)"
    assert (done.returncode, done.stderr) == (1, f"framegate: {text}\n")
    words = ("limits", "set", "--listener", "plain", "--max-receive-size", "1000", "--address", tcp)
    done = run_cli(*words, "--tls", str(folder / "tls"))
    assert done.returncode == 0, done.stderr
    row = until(lambda: rows(folder / "disk/audit.log"))[-1]
    assert (row["who"], row["role"], row["after"]) == ("CN=ada,O=Test", "operate", {"max_receive_size_bytes": 1000})
    assert "--tls" in run_cli(*words).stderr, "without it"
