"""``framegate init``: writes a small configuration that is ready to run."""

import contextlib
import datetime
import os
import pathlib
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

import click

from framegate.control.cli.kinds import BOOTSTRAP
from framegate.control.cli.options import EXIT_CONFLICT, example
from framegate.control.cli.output import print_note, shown, write_text

_PORTS: Final = range(9093, 9193)
_KAFKA_PORTS: Final = range(19092, 29092, 200)  # the 99 above each belong to brokers
_DAYS: Final = 30
_NAMES: Final = ("framegate.yaml", "client.py", *(f"tls/{name}" for name in ("ca.crt", "server.crt", "server.key", "client.crt", "client.key")))
_CONFIGURATION: Final = """\
# Written by `framegate init`. Clients use TLS with a client certificate. A frame is a big-endian size of four bytes and that many bytes.
# `framegate config explain KEY` explains a key; `framegate check --config FILE` lists all faults of a file.
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
    endpoints: [{upstream}]
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


def send(body):
    context = ssl.create_default_context(cafile=FILES / "ca.crt")
    context.load_cert_chain(FILES / "client.crt", FILES / "client.key")
    with context.wrap_socket(connect(), server_hostname="localhost") as connection:
        connection.sendall(len(body).to_bytes(4, "big") + body)
        answer = connection.makefile("rb")
        size = answer.read(4)
        if len(size) < 4:
            raise ConnectionError
        return answer.read(int.from_bytes(size, "big"))


try:
    print(send(" ".join(sys.argv[1:]).encode()).decode(errors="replace"))
except TimeoutError:
    sys.exit("no answer within 10 seconds")
except (ConnectionError, ssl.SSLEOFError):
    hint = "`framegate channels list --closed --address unix:%s` shows the cause" % (FILES.parent / "run" / "admin.sock")
    sys.exit("the connection was closed without an answer; " + hint)
except ssl.SSLCertVerificationError as error:
    sys.exit("another server answers on port %d, or its certificate has expired: %s" % (ADDRESS[1], error.verify_message))
except ssl.SSLError as error:
    sys.exit("another server answers on port %d, or it refuses the client's certificate: %s" % (ADDRESS[1], error.reason))
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
        found = f"unix:{os.path.abspath(address.host)}" if address.kind == "unix" else value
        parse_address(found)  # the current folder may have a name that no configuration can hold
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return found


@click.command(
    short_help="Write a first configuration that is ready to run.",
    epilog=example(
        "framegate init demo",
        "framegate init demo --upstream 127.0.0.1:7000",
        "framegate init edge --kafka kafka-1.example.org:9092,kafka-2.example.org:9092",
    ),
)
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(file_okay=False), callback=_folder)
@click.option(
    "--upstream",
    metavar="ADDRESS",
    callback=_endpoint,
    help="The server that gets the frames: host:port or unix:PATH.  [default: none; a handler echoes each frame]",
)
@click.option(
    "--kafka",
    "bootstrap",
    type=BOOTSTRAP,
    help="Some brokers of a Kafka cluster, as in bootstrap.servers. Writes the configuration only: a listener in front of the whole cluster.",
)
def init(directory: pathlib.Path, upstream: str | None, bootstrap: tuple[str, ...] | None) -> None:
    """Write a small configuration, test certificates and a client into DIR (default: the current folder). Prints the commands that start framegate,
    send a frame and stop framegate.

    No root rights, other server or compiler are needed. The keys are new and have the mode 0600; the certificates expire after 30 days. framegate
    listens on 127.0.0.1, on the first free port from 9093 (with --kafka from 19092, and on one for each broker). Existing files are not overwritten.

    Exit codes: 0 success; 1 a file cannot be written; 2 wrong usage; 4 one of the files exists, nothing was written.
    """
    from framegate.control.demo import certificates
    from framegate.proxy.config.address import MAX_UNIX_PATH_BYTES

    if len(os.fsencode(directory.absolute() / "run" / "admin.sock")) > MAX_UNIX_PATH_BYTES:
        raise click.UsageError(f"the path of {directory} is too long for a Unix socket in it; choose another folder")
    if bootstrap is not None and upstream is not None:
        raise click.UsageError("--kafka cannot be used with --upstream")
    names = _NAMES if bootstrap is None else _NAMES[:1]
    there = [str(directory / name) for name in names if os.path.lexists(directory / name)]
    if there:
        _conflict(", ".join(there))
    port = _free_port(_PORTS) if bootstrap is None else _free_port(_KAFKA_PORTS)
    node = _node(directory.absolute().name)
    configuration = _configuration(node, port, upstream) if bootstrap is None else _kafka(node, port, bootstrap)
    with _all_or_nothing(directory, names):
        directory.mkdir(parents=True, exist_ok=True)
        # Only one of several `framegate init` at once can create this file; it then writes the others.
        with open(directory / _NAMES[0], "x", encoding="utf-8") as file:
            file.write(configuration)
        if bootstrap is None:
            (directory / "client.py").write_text(_CLIENT.format(port=port), encoding="utf-8")
            certificates.create(directory / "tls", datetime.timedelta(days=_DAYS))
    write_text("".join(f"{line}\n" for line in _commands(directory, port if bootstrap is not None else 0)))


@contextlib.contextmanager
def _all_or_nothing(directory: pathlib.Path, names: Sequence[str]) -> Iterator[None]:
    """Remove what the block has written when it fails, and exit. The block writes the files in the order of ``names``, none of which exists."""
    folders = [folder for folder in (directory / "tls", directory, *directory.parents) if not os.path.exists(folder)]
    try:
        yield
    except BaseException as error:
        if isinstance(error, FileExistsError) and error.filename == str(directory / _NAMES[0]):
            _conflict(error.filename)
        written = [directory / name for name in names if os.path.lexists(directory / name)]
        for remove, paths in ((os.unlink, written), (os.rmdir, folders)):
            for path in paths:
                with contextlib.suppress(OSError):
                    remove(path)
        if not isinstance(error, OSError):
            raise
        # An error of writing does not name the file. It is the newest one.
        print_note(f"{error.filename or [directory, *written][-1]}: {error.strerror}")
        sys.exit(1)


def _conflict(names: str) -> NoReturn:
    print_note(f"{names}: already exists; nothing was written")
    sys.exit(EXIT_CONFLICT)


def _free_port(ports: range) -> int:
    """The first free port; the first one when none is free, which `serve` then reports."""
    for port in ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    return ports[0]


def _node(name: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "-" for letter in name).strip("._-")[:63] or "framegate"


def _kafka(node: str, port: int, bootstrap: tuple[str, ...]) -> str:
    from framegate.control.kubernetes.kafka_sidecar import kafka_configuration

    return kafka_configuration(bootstrap, "# Written by `framegate init --kafka`.", node=node, port=port, in_pod=False)


def _configuration(node: str, port: int, upstream: str | None) -> str:
    from framegate.proxy.handler.echo import echo

    target = "    upstream: server" if upstream else _HANDLER.format(handler=f"{echo.__module__}:{echo.__name__}")
    text = _CONFIGURATION.format(node=f'"{node}"', listen=f"127.0.0.1:{port}", target=target, days=_DAYS)
    return text + (_UPSTREAMS.format(upstream=_quoted(upstream)) if upstream else "")


def _quoted(text: str) -> str:
    """Text as a scalar of YAML in double quotes; the escapes of ``shown`` are YAML's as well."""
    return '"' + "".join(f"\\{letter}" if letter in '"\\' else shown(letter) for letter in text) + '"'


def _commands(directory: pathlib.Path, kafka_port: int) -> list[str]:
    """``kafka_port``: of the bootstrap; 0: there is a client to run."""
    folder = f"./{directory}" if str(directory).startswith("-") else str(directory)  # a leading dash would be an option

    def place(name: str) -> str:
        return shlex.quote(os.path.join(folder, name) if folder != "." else name)

    if kafka_port:
        listed = f"sleep 2; framegate brokers list --address {shlex.quote(f'unix:{directory.absolute()}/run/admin.sock')}"
        try_it = [
            f"# clients of Kafka: bootstrap.servers=127.0.0.1:{kafka_port}; these are the brokers, and the addresses that clients are told",
            listed,
        ]
    else:
        try_it = ["# send a frame and print the answer", f"python3 {place('client.py')} hello"]
    return [
        "# start framegate; the log goes to framegate.log",
        f"framegate serve --config {place('framegate.yaml')} > {place('framegate.log')} &",
        *try_it,
        "# stop framegate",
        "kill $!",
    ]
