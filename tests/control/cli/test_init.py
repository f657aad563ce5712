"""``framegate init``: what it writes, and what it does not overwrite."""

import contextlib
import errno
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from framegate.control.cli.commands import main
from framegate.control.configuration.load import examine
from framegate.proxy.config.model import ProxyConfig
from tests.fakes.cli import NO_FILE_GROWS, run_cli


def init(*words: str) -> Result:
    return CliRunner().invoke(main, ["init", *words])


def contents(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


def made(folder: Path) -> ProxyConfig:
    found = examine(folder / "framegate.yaml")
    assert (found.faults, found.warnings) == ([], [])
    assert found.config is not None
    return found.config


def test_what_it_writes_is_good_and_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "a demo"
    result = init(str(folder))
    assert (result.exit_code, result.stderr) == (0, "")
    config = made(folder)
    assert (config.node, config.listeners[0].handler, config.upstreams) == ("a-demo", "framegate.proxy.handler.echo:echo", ())
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*.key")}
    assert modes == {"server.key": 0o600, "client.key": 0o600}
    commands = [line for line in result.stdout.splitlines() if not line.startswith("#")]
    assert commands == [
        f"framegate serve --config '{folder}/framegate.yaml' > '{folder}/framegate.log' &",
        f"python3 '{folder}/client.py' hello",
        "kill $!",
    ]


@pytest.mark.parametrize("name", ["framegate.yaml", "client.py", "tls/client.key"])
def test_a_file_that_is_there_is_not_overwritten_and_nothing_is_written_beside_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "tls").mkdir()
    (tmp_path / name).write_text("mine")
    result = init(str(tmp_path))
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == f"framegate: {tmp_path / name}: already exists; nothing was written\n"
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ["mine"]


def test_of_two_at_once_one_is_refused_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made"
    first: dict[Path, str] = {}

    def free_port(ports: range) -> int:
        """The other one runs as a whole, after this one has seen that no file exists."""
        monkeypatch.undo()
        assert init(str(folder)).exit_code == 0
        first.update(contents(folder))
        return 1

    monkeypatch.setattr("framegate.control.cli.init._free_port", free_port)
    second = init(str(folder))
    assert (second.exit_code, second.stdout, contents(folder)) == (4, "", first)
    assert second.stderr == f"framegate: {folder}/framegate.yaml: already exists; nothing was written\n"


@pytest.mark.slow
def test_a_disk_that_is_full_is_told_with_the_file_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in" / "made"
    said = run_cli("init", str(folder), before=NO_FILE_GROWS)
    assert said == (1, "", f"framegate: {folder}/framegate.yaml: File too large\n")
    assert os.listdir(tmp_path) == []

    def create(directory: Path, lifetime: object) -> None:
        directory.mkdir()
        (directory / "ca.crt").write_text("whole")
        (directory / "server.crt").write_text("a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("framegate.control.demo.certificates.create", create)
    (tmp_path / "in").mkdir()
    result = init(str(folder))
    assert (result.exit_code, result.stderr) == (1, f"framegate: {folder}/tls/server.crt: No space left on device\n")
    assert os.listdir(tmp_path / "in") == []


def test_an_upstream_takes_the_place_of_the_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    endpoints = {"127.0.0.1:7000": "127.0.0.1:7000", "unix:s.sock": f"unix:{tmp_path}/s.sock"}
    odd = ("/tmp/x\\ny", '/tmp/a"b', "/tmp/\x1b[31m", "/tmp/a\nb", "/tmp/\x7f\x85\u2028\U0001f600", "/tmp/a #: {${HOME}}'")
    endpoints.update({f"unix:{path}": f"unix:{path}" for path in odd})
    for number, (address, endpoint) in enumerate(endpoints.items()):
        assert init(f"made{number}", "--upstream", address).exit_code == 0
        config = made(tmp_path / f"made{number}")
        assert (config.listeners[0].handler, config.listeners[0].upstream, config.upstreams[0].endpoints) == (None, "server", (endpoint,))
    for address, reason in {"nowhere": "is not an address", "unix:/tmp/\udc80": "surrogates not allowed"}.items():
        wrong = init("other", "--upstream", address)
        assert (wrong.exit_code, reason in wrong.stderr, (tmp_path / "other").exists()) == (2, True, False), address


def test_with_kafka_it_writes_a_listener_in_front_of_the_cluster_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "edge"
    folder.mkdir()
    (folder / "client.py").write_text("mine")
    done = init(str(folder), "--kafka", "kafka-1:9092, kafka-2:9092,kafka-1:9092")
    assert (done.exit_code, sorted(path.name for path in folder.iterdir())) == (0, ["client.py", "framegate.yaml"])
    config = made(folder)
    ((kafka,), (listener,)) = (config.upstreams, config.listeners)
    assert kafka.kafka is not None
    assert listener.brokers is not None
    assert kafka.kafka.bootstrap == ("kafka-1:9092", "kafka-2:9092")
    port = int(listener.address.removeprefix("127.0.0.1:"))
    assert listener.brokers.ports == f"{port + 8}-{port + 107}"
    assert f"bootstrap.servers=127.0.0.1:{port};" in done.stdout
    assert f"framegate brokers list --address unix:{folder}/run/admin.sock" in done.stdout
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        assert init(str(tmp_path / "second"), "--kafka", "kafka-1:9092").exit_code == 0
    assert made(tmp_path / "second").listeners[0].address == f"127.0.0.1:{port + 200}", "the ranges of both are apart"
    for words, reason in {
        ("--kafka", "kafka-1"): "'kafka-1': ",
        ("--kafka", "kafka-1:9092,"): "'': ",
        ("--kafka", "unix:/run/kafka"): "'unix:/run/kafka': ",
        ("--kafka", "0.0.0.0:9092"): "is no address of a broker",
        ("--kafka", "k:1", "--upstream", "k:1"): "--kafka cannot be used with --upstream",
    }.items():
        wrong = init(str(tmp_path / "other"), *words)
        assert (wrong.exit_code, reason in wrong.stderr, (tmp_path / "other").exists()) == (2, True, False), wrong.stderr


def test_a_port_that_is_in_use_is_passed_over(tmp_path: Path) -> None:
    assert init(str(tmp_path / "first")).exit_code == 0
    address = made(tmp_path / "first").listeners[0].address
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        assert init(str(tmp_path / "second")).exit_code == 0
    second = made(tmp_path / "second").listeners[0].address
    assert second != address
    assert f'ADDRESS = ("127.0.0.1", {second.rpartition(":")[2]})' in (tmp_path / "second/client.py").read_text()


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    long = init(str(tmp_path / ("x" * 100)))
    assert (long.exit_code, "too long for a Unix socket" in long.stderr) == (2, True)
    (tmp_path / "file").write_text("")
    empty = init("")
    assert (empty.exit_code, "is empty" in empty.stderr) == (2, True)
    wrong = init(str(tmp_path / "file" / "in"))
    assert (wrong.exit_code, wrong.stderr) == (1, f"framegate: {tmp_path}/file/in: Not a directory\n")


def test_its_commands_work_for_a_folder_whose_name_begins_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = init("--", "-d")
    assert (done.exit_code, [line for line in done.stdout.splitlines() if " -d/" in line]) == (0, [])
    assert "framegate serve --config ./-d/framegate.yaml" in done.stdout


@pytest.mark.slow
def test_the_client_says_in_a_sentence_why_there_is_no_answer(tmp_path: Path) -> None:
    folder, other = tmp_path / "made", tmp_path / "other"
    assert (init(str(folder)).exit_code, init(str(other)).exit_code) == (0, 0)
    client = folder / "client.py"
    client.write_text(client.read_text().replace("timeout=10", "timeout=1"))
    port = int(made(folder).listeners[0].address.rpartition(":")[2])

    def ended_by(tls: Path | None, *, waits: bool = False) -> str:
        """What the client says. The server has the certificate of a folder, or no TLS; it waits for the client's end, or ends first."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain((tls or folder) / "tls/server.crt", (tls or folder) / "tls/server.key")
        command = [sys.executable, str(client), "hello"]
        with socket.create_server(("127.0.0.1", port)) as server, subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            with contextlib.suppress(ssl.SSLError), server.accept()[0] as plain:
                if tls is None:
                    plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    process.wait(30)
                else:
                    with context.wrap_socket(plain, server_side=True) as connection:
                        assert connection.recv(100).endswith(b"hello")
                        if waits:
                            process.wait(30)
            said = process.communicate(timeout=30)[1]
        assert process.returncode == 1
        return said

    hint = f"`framegate channels list --closed --address unix:{folder}/run/admin.sock` shows the cause"
    assert ended_by(folder) == f"the connection was closed without an answer; {hint}\n"
    assert ended_by(folder, waits=True) == "no answer within 10 seconds\n"
    assert ended_by(other).startswith(f"another server answers on port {port}, or its certificate has expired: ")
    assert ended_by(None).startswith(f"another server answers on port {port}, or it refuses the client's certificate: ")
