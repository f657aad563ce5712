"""``framegate init``: what it writes, and what it does not overwrite."""

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


def init(*words: str) -> Result:
    return CliRunner().invoke(main, ["init", *words])


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


def test_an_upstream_takes_the_place_of_the_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, (address, endpoint) in enumerate({"127.0.0.1:7000": "127.0.0.1:7000", "unix:s.sock": f"unix:{tmp_path}/s.sock"}.items()):
        assert init(f"made{number}", "--upstream", address).exit_code == 0
        config = made(tmp_path / f"made{number}")
        assert (config.listeners[0].handler, config.listeners[0].upstream, config.upstreams[0].endpoints) == (None, "server", (endpoint,))
    wrong = init("other", "--upstream", "nowhere")
    assert (wrong.exit_code, "is not an address" in wrong.stderr, (tmp_path / "other").exists()) == (2, True, False)


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
    assert (wrong.exit_code, wrong.stderr) == (1, f"Error: {tmp_path}/file/in/tls: Not a directory\n")


def test_its_commands_work_for_a_folder_whose_name_begins_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = init("--", "-d")
    assert (done.exit_code, [line for line in done.stdout.splitlines() if " -d/" in line]) == (0, [])
    assert "framegate serve --config ./-d/framegate.yaml" in done.stdout


def test_the_client_fails_when_its_connection_ends_without_an_answer(tmp_path: Path) -> None:
    assert init(str(tmp_path)).exit_code == 0
    address = made(tmp_path).listeners[0].address.rpartition(":")[2]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls/server.crt", tmp_path / "tls/server.key")
    with socket.create_server(("127.0.0.1", int(address))) as server:
        command = [sys.executable, str(tmp_path / "client.py"), "hello"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
            with context.wrap_socket(server.accept()[0], server_side=True) as connection:
                assert connection.recv(100).endswith(b"hello")
            assert (*client.communicate(), client.returncode) == ("", "the connection was closed without an answer\n", 1)
