"""``framegate init``: writes a small configuration that is ready to run."""

import datetime
import os
import pathlib
import shlex
import socket
import sys
from typing import Final

import click

from framegate.control.cli.options import EXIT_CONFLICT, example

__all__ = ["init"]

_FIRST_PORT: Final = 9093
_PORTS: Final = 100
_DAYS: Final = 30
_NAMES: Final = ("framegate.yaml", "client.py", *(f"tls/{name}" for name in ("ca.crt", "server.crt", "server.key", "client.crt", "client.key")))
_CONFIGURATION: Final = """\
# Written by `framegate init`. Clients use TLS with a client certificate. A frame is a big-endian size of four bytes and that many bytes.
# `framegate explain KEY` explains a key; `framegate check --config FILE` lists all faults of a file.
node: {node}

admin:
  address: "unix:run/admin.sock"

memory_pool:
  size: 64MiB

listeners:
  - name: clients
    address: "{listen}"
{target}
    max_receive_size: 1MiB
    tls:
      certificate: tls/server.crt # for localhost and 127.0.0.1; it expires after {days} days
      key: tls/server.key
      client_auth: required
      client_ca: tls/ca.crt
"""
_HANDLER: Final = """\
    # This handler echoes each frame, so no server is needed. For a server of your own, write `upstream: server` instead, and
    # upstreams: [{{name: server, endpoints: ["HOST:PORT"]}}] at the end of the file.
    handler: {handler}"""
_UPSTREAMS: Final = """
upstreams:
  - name: server
    endpoints: ["{upstream}"]
"""
_CLIENT: Final = '''\
"""Sends one frame through framegate, and prints the answer: python3 client.py TEXT"""

import pathlib
import socket
import ssl
import sys
import time

ADDRESS = ("127.0.0.1", {port})
FILES = pathlib.Path(__file__).parent / "tls"


def connect():
    for _ in range(100):  # framegate may be starting
        try:
            return socket.create_connection(ADDRESS, timeout=10)
        except ConnectionRefusedError:
            time.sleep(0.1)
    sys.exit("no framegate listens at %s:%d" % ADDRESS)


context = ssl.create_default_context(cafile=FILES / "ca.crt")
context.load_cert_chain(FILES / "client.crt", FILES / "client.key")
with context.wrap_socket(connect(), server_hostname="localhost") as connection:
    body = " ".join(sys.argv[1:]).encode()
    connection.sendall(len(body).to_bytes(4, "big") + body)
    answer = connection.makefile("rb")
    size = answer.read(4)
    if len(size) < 4:
        sys.exit("the connection was closed without an answer")
    print(answer.read(int.from_bytes(size, "big")).decode(errors="replace"))
'''


def _folder(ctx: click.Context, param: click.Parameter, value: str) -> pathlib.Path:
    if not value:
        raise click.BadParameter("is empty", ctx, param)
    return pathlib.Path(value)


def _endpoint(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from framegate.proxy.config.address import parse_address

    if value is None:
        return None
    try:
        address = parse_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return f"unix:{os.path.abspath(address.host)}" if address.kind == "unix" else value


@click.command(
    short_help="Write a first configuration that is ready to run.",
    epilog=example("framegate init demo", "framegate init demo --upstream 127.0.0.1:7000"),
)
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(file_okay=False), callback=_folder)
@click.option(
    "--upstream",
    metavar="ADDRESS",
    callback=_endpoint,
    help="The server that gets the frames: host:port or unix:PATH.  [default: none; a handler echoes each frame]",
)
def init(directory: pathlib.Path, upstream: str | None) -> None:
    """Write a small configuration, test certificates and a client into DIR (default: the current folder). Prints the commands that start framegate,
    send a frame and stop framegate.

    No root rights, other server or compiler are needed. The keys are new and have the mode 0600; the certificates expire after 30 days. framegate
    listens on 127.0.0.1, on the first free port from 9093. Existing files are not overwritten.

    Exit codes: 0 success; 1 a file cannot be written; 2 wrong usage; 4 one of the files exists, nothing was written.
    """
    from framegate.control.demo import certificates
    from framegate.proxy.config.address import MAX_UNIX_PATH_BYTES

    if len(os.fsencode(directory.absolute() / "run" / "admin.sock")) > MAX_UNIX_PATH_BYTES:
        raise click.UsageError(f"the path of {directory} is too long for a Unix socket in it; choose another folder")
    there = [str(directory / name) for name in _NAMES if os.path.lexists(directory / name)]
    if there:
        click.echo(f"framegate: {', '.join(there)}: already exists; nothing was written", err=True)
        sys.exit(EXIT_CONFLICT)
    port = _free_port()
    configuration = _configuration(directory.absolute().name, port, upstream)
    try:
        certificates.create(directory / "tls", datetime.timedelta(days=_DAYS))
        (directory / "framegate.yaml").write_text(configuration, encoding="utf-8")
        (directory / "client.py").write_text(_CLIENT.format(port=port), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{error.filename or directory}: {error.strerror}") from None
    for line in _commands(directory):
        click.echo(line)


def _free_port() -> int:
    """The first free port; ``_FIRST_PORT`` when none is free, which `serve` then reports."""
    for port in range(_FIRST_PORT, _FIRST_PORT + _PORTS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return _FIRST_PORT


def _configuration(name: str, port: int, upstream: str | None) -> str:
    from framegate.proxy.handler.echo import echo

    node = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in name).strip("._-")[:63] or "framegate"
    target = "    upstream: server" if upstream else _HANDLER.format(handler=f"{echo.__module__}:{echo.__name__}")
    text = _CONFIGURATION.format(node=f'"{node}"', listen=f"127.0.0.1:{port}", target=target, days=_DAYS)
    return text + (_UPSTREAMS.format(upstream=upstream) if upstream else "")


def _commands(directory: pathlib.Path) -> list[str]:
    folder = f"./{directory}" if str(directory).startswith("-") else str(directory)  # a leading dash would be an option

    def place(name: str) -> str:
        return shlex.quote(os.path.join(folder, name) if folder != "." else name)

    return [
        "# start framegate; the log goes to framegate.log",
        f"framegate serve --config {place('framegate.yaml')} > {place('framegate.log')} &",
        "# send a frame and print the answer",
        f"python3 {place('client.py')} hello",
        "# stop framegate",
        "kill $!",
    ]
