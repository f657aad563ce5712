"""Why a control plane cannot be reached, with what is really there."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from framegate.control.cli.commands import main
from framegate.control.cli.reach import unreachable
from framegate.control.demo.certificates import create
from tests.fakes.cli import Cli
from tests.fakes.privileges import unprivileged


@contextlib.contextmanager
def listening(family: int, address: object, tls: ssl.SSLContext | None = None) -> Iterator[socket.socket]:
    """A server that accepts and closes, after a handshake when it has TLS."""
    server = socket.socket(family, socket.SOCK_STREAM)
    server.bind(address)  # type: ignore[arg-type]
    server.listen()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client = server.accept()[0]
                with contextlib.suppress(OSError), client:
                    client.settimeout(5)
                    client.recv(1) if tls is None else tls.wrap_socket(client, server_side=True).close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        server.close()


def said(address: str) -> str:
    """What ``status`` says; every case is unavailable."""
    result = CliRunner().invoke(main, ["status", "--address", address])
    assert (result.exit_code, result.stdout) == (5, "")
    (line,) = result.stderr.splitlines()
    prefix = f"framegate: the admin API at {address} cannot be reached: "
    assert line.startswith(prefix)
    return line.removeprefix(prefix)


def test_a_file_and_a_folder_are_no_sockets(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert said(f"unix:{tmp_path}/file") == f"{tmp_path}/file is not a socket"
    assert said(f"unix:{tmp_path}") == f"{tmp_path} is not a socket"
    assert said(f"unix:{tmp_path}/file/s") == f"{tmp_path}/file/s: Not a directory"


def test_a_socket_of_another_kind(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "s"))
        assert said(f"unix:{tmp_path}/s") == f"{tmp_path}/s is not a stream socket"


def test_permission_denied_names_whose_socket_it_is(cli: Cli) -> None:
    path = Path(cli.address.removeprefix("unix:"))
    path.parent.chmod(0o755)
    path.chmod(0)
    with unprivileged():
        line = said(cli.address)
    assert line == f"permission denied: the socket is of user {path.owner()} and group {path.group()}, mode 0000"
    path.parent.chmod(0)
    with unprivileged():
        line = said(cli.address)
    path.parent.chmod(0o700)
    assert line == f"permission denied: this user cannot search the folder of {path}"


def test_a_port_on_which_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert said(f"127.0.0.1:{bound.getsockname()[1]}").startswith("no process listens there; is")


def test_a_name_that_means_nothing() -> None:
    assert "cannot be resolved" in unreachable("nowhere.invalid:1")


def test_a_port_that_speaks_tls(tmp_path: Path) -> None:
    made = create(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.server, made.server_key)
    with listening(socket.AF_INET, ("127.0.0.1", 0), context) as server:
        assert said(f"127.0.0.1:{server.getsockname()[1]}").startswith("the server there uses TLS; is it a listener for clients?")


def test_a_socket_that_speaks_something_else(tmp_path: Path) -> None:
    with listening(socket.AF_UNIX, str(tmp_path / "s")):
        assert said(f"unix:{tmp_path}/s") == "the server there is not the admin API: it does not speak gRPC"


def test_a_queue_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.cli.reach._TIMEOUT_S", 0.05)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(tmp_path / "s"))
        server.listen(0)
        for _ in range(2):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(str(tmp_path / "s"))
        assert unreachable(f"unix:{tmp_path}/s") == "no connection within 0.05 s; the server accepts none at the moment"


@pytest.mark.parametrize(
    ("address", "part"),
    [
        ("", "is empty: write unix:PATH"),
        (" ", "is empty: write unix:PATH"),
        ("unix:", "unix: needs a path"),
        ("/run/framegate/admin.sock", "is a path: write unix:/run/framegate/admin.sock"),
        ("./admin.sock", "is a path: write unix:./admin.sock"),
        ("README.md", "is a path: write unix:README.md"),
        ("framegate", "is not an address"),
        ("http://127.0.0.1:1", "has a scheme: write unix:PATH or host:port"),
        ("127.0.0.1:http", "port 'http' is not a number"),
        (f"unix:/{'x' * 107}", "has 108 bytes; a Unix socket's path has at most 107"),
    ],
)
def test_what_is_no_address_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, address: str, part: str) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    for runner, words in ((CliRunner(), ["--address", address]), (CliRunner(env={"FRAMEGATE_ADDRESS": address}), [])):
        result = runner.invoke(main, ["status", *words])
        assert (result.exit_code, result.stdout) == (2, "")
        if address or words:
            assert part in " ".join(result.stderr.split())
