"""Rules about this machine: their keys and texts, the same for check and serve; tried with real folders, files, sockets and addresses."""

import fcntl
import json
import os
import pathlib
import socket
import stat
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from framegate.control.configuration import machine as module
from framegate.control.configuration.cgroup import Container
from framegate.control.configuration.document import ConfigurationError
from framegate.control.configuration.load import examine
from framegate.control.configuration.machine import bind_fault, folder_fault, is_served, lock_fault, lock_holder, socket_fault, tap_bytes
from framegate.control.configuration.units import format_size
from framegate.control.tap.directory_lock import DirectoryLock
from framegate.proxy.config.address import parse_address
from framegate.proxy.config.model import GIB, MIB, SocketConfig
from framegate.proxy.network.connection_socket import set_socket_options
from framegate.proxy.tap.record import LOCK_NAME, WRITERS_NAME
from tests.fakes.configuration import load
from tests.fakes.privileges import unprivileged


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """A folder that every user can look into."""
    with tempfile.TemporaryDirectory() as text:
        os.chmod(text, 0o755)
        yield pathlib.Path(text)


SMALL: dict[str, Any] = {
    "node": "n",
    "processors": 1,
    "memory_pool": {"size": "1MiB"},
    "admin": {"address": "unix:admin.sock"},
    "listeners": [{"name": "a", "address": "127.0.0.1:0", "upstream": "u", "max_receive_size": "1MiB"}],
    "upstreams": [{"name": "u", "endpoints": ["127.0.0.1:1"]}],
}


def write(folder: pathlib.Path, **changes: object) -> pathlib.Path:
    path = folder / "framegate.yaml"
    path.write_text(json.dumps({**SMALL, **changes}, indent=1))
    return path


def listener(**keys: object) -> list[dict[str, object]]:
    return [{**SMALL["listeners"][0], **keys}]


def fault(path: pathlib.Path) -> tuple[int, str, str, str]:
    """The only fault of a file; ``serve`` has the same."""
    found = examine(path, in_use=True)
    with pytest.raises(ConfigurationError) as caught:
        load(path)
    assert caught.value.faults == found.faults
    assert found.config is None
    assert [item for item in found.warnings if item.value != "unix:/tmp/admin.sock"] == []
    (item,) = found.faults
    return item.line, item.key, item.value, item.reason


def warnings(path: pathlib.Path, *, in_use: bool = True) -> list[tuple[str, str, str]]:
    found = examine(path, in_use=in_use)
    assert found.faults == []
    assert found.config is not None
    return [(item.key, item.value, item.reason) for item in found.warnings]


def test_a_tap_directory_with_a_file_in_its_place(folder: pathlib.Path) -> None:
    (folder / "tap").write_text("")
    path = write(folder, tap={"directory": "tap"})
    line, *rest = fault(path)
    assert rest == ["tap.directory", "tap", f"cannot be used: {folder}/tap is not a directory"]
    assert path.read_text().splitlines()[line - 1].strip().startswith('"directory"')


def test_a_tap_directory_that_cannot_be_written(folder: pathlib.Path) -> None:
    (folder / "tap").mkdir(mode=0o555)
    for name in ("tap", "tap/below/it"):
        path = write(folder, tap={"directory": name}, admin={"address": "unix:/tmp/admin.sock"})
        with unprivileged():
            *where, reason = fault(path)[1:]
            assert where == ["tap.directory", name]
            assert reason.startswith(f"cannot be used: {folder}/tap is not writable: Permission denied; ")


def test_a_lock_file_that_cannot_be_opened_is_a_fault(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    DirectoryLock(str(folder / "tap"), "tap directory").release()
    (folder / "tap").chmod(0o777)
    path = write(folder, tap={"directory": "tap"}, admin={"address": "unix:/tmp/admin.sock"})
    for name, other in ((LOCK_NAME, WRITERS_NAME), (WRITERS_NAME, LOCK_NAME)):
        (folder / "tap" / name).chmod(0o400)
        (folder / "tap" / other).chmod(0o666)
        with unprivileged():
            words = f"cannot be used: its lock file {folder}/tap/{name} cannot be opened: Permission denied"
            assert fault(path)[1:] == ("tap.directory", "tap", words)
    (folder / "admin.sock.lock").mkdir()
    assert fault(write(folder))[3] == f"cannot be used: its lock file {folder}/admin.sock.lock cannot be opened: Is a directory"
    assert lock_fault(str(tmp_path / "none")) is None
    (tmp_path / "link").symlink_to(tmp_path / "none")
    assert "cannot be opened: Too many levels of symbolic links" in str(lock_fault(str(tmp_path / "link")))


def test_a_disk_smaller_than_the_budget_is_a_warning(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "tap" / "n.0.b").mkdir(parents=True)
    with open(folder / "tap" / "n.0.b" / f"{0:020d}.seg", "wb") as file:
        file.truncate(300 * MIB)
    path = write(folder, tap={"directory": "tap", "budget": "1GiB"})
    for free, expected in ((GIB, []), (724 * MIB, []), (724 * MIB - 1, ["723MiB"]), (1020 * 1024, ["1020KiB"]), (0, ["0B"])):
        monkeypatch.setattr("framegate.control.configuration.machine.free_bytes", lambda path, free=free: free)
        assert [(key, value, reason) for key, value, reason in warnings(path)] == [
            ("tap.budget", "1GiB", f"is more than the disk has room for: {text} are free and 300MiB are the tap's already") for text in expected
        ]


def test_an_admin_socket_in_a_folder_that_others_may_write_in_is_a_warning(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may write there can replace the socket; with the sticky bit, make one before framegate does."""
    (folder / "above" / "run").mkdir(parents=True)
    path = write(folder, admin={"address": "unix:above/run/admin.sock"})
    group = os.stat(folder).st_gid
    for above, mode, said in (
        (0o755, 0o700, None),
        (0o755, 0o755, None),
        (0o755, 0o770, f"{folder}/above/run can be written by the group {group} (mode 0770)"),
        (0o755, 0o702, f"{folder}/above/run can be written by everybody (mode 0702)"),
        (0o755, 0o1777, f"{folder}/above/run can be written by everybody (mode 1777)"),
        (0o1777, 0o700, None),
        (0o777, 0o700, f"{folder}/above can be written by everybody (mode 0777)"),
    ):
        (folder / "above").chmod(above)
        (folder / "above" / "run").chmod(mode)
        expected = [] if said is None else [f"can be replaced by other users: {said}; chmod 0700"]
        assert [reason for key, _, reason in warnings(path) if key == "admin.address"] == expected
    if os.geteuid() == 0:  # only root gives a folder away
        (folder / "above" / "run").chmod(0o755)
        os.chown(folder / "above" / "run", 65534, 65534)
        ((_, _, reason),) = [item for item in warnings(path) if item[0] == "admin.address"]
        assert reason.endswith(f"{folder}/above/run is of user 65534, and framegate is user 0; chown it")
    (folder / "above").chmod(0o777)
    (folder / "above" / "run").rmdir()
    assert [key for key, _, _ in warnings(path)] == ["admin.address"], "it would be made there"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert warnings(path) == [], "an emptyDir of a pod is as open, and nobody else has access to it"


def test_an_address_that_is_not_of_this_machine_cannot_be_bound(folder: pathlib.Path) -> None:
    cases: list[tuple[str, str, dict[str, object]]] = [
        ("listeners[0].address", "192.0.2.1:9093", {"listeners": listener(address="192.0.2.1:9093")}),
        ("health.address", "192.0.2.1:9901", {"health": {"address": "192.0.2.1:9901"}}),
        ("telemetry.prometheus.address", "192.0.2.1:9464", {"telemetry": {"prometheus": {"address": "192.0.2.1:9464"}}}),
    ]
    for key, value, changes in cases:
        assert fault(write(folder, **changes))[1:] == (key, value, "cannot be bound: Cannot assign requested address")
    assert fault(write(folder, listeners=listener(address="nowhere.invalid:9093")))[3].startswith("cannot be bound: ")


def test_a_name_that_is_an_address_in_use_is_a_fault(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 19093))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **names: answer)
    path = write(folder, listeners=listener(address="localhost:19093"), health={"address": "127.0.0.1:19093"})
    assert fault(path)[1:] == (
        "health.address", "127.0.0.1:19093", "is 127.0.0.1:19093 here, which is already used by listeners[0].address (line 13)",
    )  # fmt: skip


def test_what_another_process_uses_is_a_warning_of_check_only(folder: pathlib.Path) -> None:
    held = DirectoryLock(str(folder / "tap"), "tap directory")
    with socket.socket() as port, socket.socket(socket.AF_UNIX) as admin, socket.socket(socket.AF_UNIX) as data:
        for sock, address in ((port, ("127.0.0.1", 0)), (admin, str(folder / "admin.sock")), (data, str(folder / "data.sock"))):
            sock.bind(address)
            sock.listen()
        number = port.getsockname()[1]
        listeners = listener(address=f"127.0.0.1:{number}") + listener(name="b", address="unix:data.sock")
        path = write(folder, listeners=listeners, tap={"directory": "tap", "budget": "128MiB"})
        until = "serve cannot start until it has ended"
        assert sorted(warnings(path)) == [
            ("admin.address", f"unix:{folder}/admin.sock", f"is in use now: another framegate listens there, and {until}"),
            ("listeners[0].address", f"127.0.0.1:{number}", "is in use now: serve cannot start until it is free"),
            ("listeners[1].address", f"unix:{folder}/data.sock", f"is in use now: another process listens there, and {until}"),
            ("tap.directory", "tap", f"is in use now: another framegate (process {os.getpid()}) writes there, and {until}"),
        ]
        assert warnings(path, in_use=False) == []
        load(path)
    held.release()


def test_a_port_of_a_broker_that_is_in_use_is_a_warning_and_one_that_cannot_be_bound_a_fault(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        number = port.getsockname()[1]
        ports = f"{number}-{number}"
        cluster = {"protocol": "kafka", "address": f"127.0.0.1:{number - 1 if number < 65_535 else 1}", "brokers": {"ports": ports}}
        path = write(folder, listeners=listener(**cluster), upstreams=[{"name": "u", "kafka": {"bootstrap": ["127.0.0.1:1"]}}])
        found = [item for item in warnings(path) if item[0].startswith("listeners[0].brokers")]
        said = f"has ports that are in use now, {number}: brokers that get them cannot be reached until they are free"
        assert found == [("listeners[0].brokers.ports", ports, said)]
        assert warnings(path, in_use=False) == []
    monkeypatch.setattr(module, "bind_fault", lambda address: ("Permission denied", False) if address.port == number else None)
    assert fault(path)[1:] == ("listeners[0].brokers.ports", ports, f"port {number} cannot be bound: Permission denied")


def test_a_backlog_beyond_what_the_kernel_allows_is_a_warning(folder: pathlib.Path) -> None:
    most = int(pathlib.Path("/proc/sys/net/core/somaxconn").read_text())
    assert warnings(write(folder, listeners=listener(backlog=most))) == []
    if most < 65_535:
        reason = f"is cut to {most} by the kernel (net.core.somaxconn)"
        assert warnings(write(folder, listeners=listener(backlog=most + 1))) == [("listeners[0].backlog", str(most + 1), reason)]


def test_a_socket_buffer_beyond_what_the_kernel_allows_is_a_warning(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And true of a socket: the kernel takes what it allows, twice, for its own overhead, without an error."""

    def check(key: str, size: int) -> list[tuple[str, str, str]]:
        upstreams = [{**SMALL["upstreams"][0], "socket": {key: size}}]
        return warnings(write(folder, listeners=listener(socket={key: size}), upstreams=upstreams))

    keys = {"receive_buffer": ("rmem_max", socket.SO_RCVBUF), "send_buffer": ("wmem_max", socket.SO_SNDBUF)}
    for key, (limit, option) in keys.items():
        most = int(pathlib.Path(f"/proc/sys/net/core/{limit}").read_text())
        assert check(key, most) == check(key, 0) == []
        if most < GIB:
            reason, shown = f"is cut to {format_size(most)} by the kernel (net.core.{limit})", format_size(most + 1)
            found = check(key, most + 1)
            assert found == [(f"listeners[0].socket.{key}", shown, reason), (f"upstreams[0].socket.{key}", shown, reason)]
            with socket.socket() as sock:
                set_socket_options(sock, SocketConfig(**{key: most + 1}))
                assert sock.getsockopt(socket.SOL_SOCKET, option) == 2 * most
    monkeypatch.setattr("framegate.control.configuration.machine._KERNEL", str(folder))  # a namespace of its own has no such limits to show
    assert [check(key, GIB) for key in keys] == [[], []]


def test_a_pool_beyond_the_container_is_a_warning(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.configuration.machine.container", lambda: Container(1, 64 * MIB, 1))
    ((key, value, reason),) = warnings(write(folder))
    assert (key, value) == ("memory_pool.size", "1MiB")
    assert reason.startswith("does not fit into the container's 64MiB: 117MiB may be needed, and 54MiB can be used")


def test_an_exporter_that_is_not_installed_is_named(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporters = {"otlp": {"endpoint": "http://127.0.0.1:1"}, "prometheus": {"address": "127.0.0.1:0"}}
    assert warnings(write(folder, telemetry=exporters)) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    _, key, _, reason = fault(write(folder, telemetry=exporters))
    assert (key, reason.partition("is not installed")[2]) == ("telemetry.otlp", ": pip install 'framegate[otlp]'")
    _, key, _, reason = fault(write(folder, tap={"directory": str(folder / "tap"), "ship": {"to": "s3://bucket"}}))
    assert (key, reason.partition("is not installed")[2]) == ("tap.ship", ": pip install 'framegate[ship]'")


def test_a_folder_that_this_user_cannot_write_is_named_with_the_reason_and_what_to_do(folder: pathlib.Path) -> None:
    given = "give it to one of them (of a pod's volume: securityContext.fsGroup)"
    moved = "set admin.address to a path that this user can write, for example unix:run/b.sock"
    if os.geteuid() == 0:  # only root has folders of another user
        folder.chmod(0o555)
        with unprivileged():
            groups = ", ".join(map(str, sorted({os.getegid(), *os.getgroups()})))
            owner = folder.stat()
            words = (
                f"{folder} is not writable: Permission denied; it is of user {owner.st_uid} and group {owner.st_gid}, mode 0555, and framegate "
                f"is user {os.geteuid()} of the groups {groups}: "
            )
            assert folder_fault(str(folder / "a" / "b")) == words + given
            assert socket_fault(str(folder / "a" / "b.sock"), "admin.address") == words + moved
        folder.chmod(0)
        with unprivileged():
            assert str(folder_fault(str(folder / "a" / "b"))).startswith(f"{folder} is not writable: Permission denied; ")
        os.chown(folder, 65534, 65534)
    for mode, right in ((0o555, "w"), (0o055, "wx")):
        folder.chmod(mode)
        with unprivileged():
            words = f"{folder} is not writable: Permission denied; it is of this user ({os.geteuid()}), mode {mode:04o}: chmod u+{right} {folder}"
            assert folder_fault(str(folder)) == socket_fault(str(folder / "b.sock"), "admin.address") == words
    folder.chmod(0o755)
    assert str(folder_fault("/proc/none")).startswith("/proc is not writable: "), "not even root can write there"


def test_a_path_is_free_for_a_socket_unless_a_file_lies_there(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left.sock"))
    assert socket_fault(str(tmp_path / "new.sock"), "k") is None
    assert socket_fault(str(tmp_path / "left.sock"), "k") is None
    assert socket_fault(str(tmp_path / "file"), "k") == "a file that is not a socket exists at this path"
    assert socket_fault(str(tmp_path), "k") == "a file that is not a socket exists at this path"
    assert socket_fault(str(tmp_path / "file" / "s"), "k") == f"{tmp_path}/file is not a directory"
    assert str(socket_fault(str(tmp_path / ("x" * 300)), "k")).startswith("File name too long")
    assert stat.S_ISSOCK((tmp_path / "left.sock").stat().st_mode)


def test_a_server_with_a_full_queue_serves(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.configuration.machine._PROBE_S", 0.02)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as waiting:
        server.bind(str(tmp_path / "s"))
        server.listen(0)
        waiting.connect(str(tmp_path / "s"))
        assert is_served(str(tmp_path / "s"))


def test_the_holder_of_a_lock_is_found_without_a_try_to_lock_it(tmp_path: pathlib.Path) -> None:
    lock = tmp_path / LOCK_NAME
    assert lock_holder(str(lock)) is None
    held = DirectoryLock(str(tmp_path), "tap directory")
    assert lock_holder(str(lock)) == str(os.getpid())
    held.release()
    assert lock_holder(str(lock)) is None
    with open(lock, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write("1\n")
        file.truncate()
        file.flush()
        assert lock_holder(str(lock)) is None  # the number in the file is not that of who holds it


def test_an_address_in_use_is_distinguished() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = parse_address(f"127.0.0.1:{server.getsockname()[1]}")
        assert bind_fault(address) == ("Address already in use", True)
    assert bind_fault(address) is None


def test_only_segments_are_counted(tmp_path: pathlib.Path) -> None:
    assert tap_bytes(str(tmp_path / "none")) == 0
    (tmp_path / "n.0.boot").mkdir()
    (tmp_path / "n.0.boot" / f"{0:020d}.seg").write_bytes(b"x" * 1000)
    (tmp_path / "n.0.boot" / "notes").write_bytes(b"x" * 1000)
    assert tap_bytes(str(tmp_path)) == 1000
