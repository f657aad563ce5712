"""``framegate check``, ``serve`` and ``demo``: commands that need no running framegate."""

import pathlib
import sys
from typing import TYPE_CHECKING

import click

from framegate.control.cli.options import example, output_option
from framegate.control.cli.output import counted, print_json, print_note, print_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from framegate.control.configuration.document import Fault
    from framegate.control.v1 import configuration_service_pb2 as pb2
    from framegate.proxy.config.log import LogFormat
    from framegate.proxy.config.model import ProxyConfig

_FOLDER = click.Path(file_okay=False, path_type=pathlib.Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=pathlib.Path)


@click.command(
    short_help="Check a configuration file.",
    epilog=example("framegate check --config framegate.yaml", "framegate check --config framegate.yaml --output json"),
)
@click.option("--config", type=_FILE, required=True, help="The configuration file.")
@output_option
def check(config: pathlib.Path, output: str) -> None:
    """Check a configuration file. Lists all faults, with line, key, value and reason.

    The command also checks this machine with the rights of the current user: files and keys, writable folders, listen addresses (it binds each for a
    moment), and the OTEL_* environment variables.

    These are warnings: an address that another process uses (so you can check a new configuration while framegate runs), expired certificates, a disk
    smaller than the tap's budget, a container with too little memory, and keys without effect.

    Exit codes: 0 no fault; 2 faults.
    """
    from framegate.control.configuration.load import examine

    found = examine(config, in_use=True)
    faults = found.faults if found.config is None else [*found.faults, *_environment_faults(found.config)]
    print_faults(str(config), faults, found.warnings, output)
    if faults:
        sys.exit(2)
    print_note(f"{config} is valid" + (f", with {counted(len(found.warnings), 'warning')}" if found.warnings else ""))


def print_faults(file: str, faults: "Iterable[Fault | pb2.Fault]", warnings: "Iterable[Fault | pb2.Fault]", output: str) -> None:
    """Print the faults and warnings of a configuration as a table or as JSON, and how many faults there are."""
    levels = [*(("fault", row) for row in faults), *(("warning", row) for row in warnings)]
    if output == "json":
        print_json([{"level": level, "line": row.line, "key": row.key, "value": row.value, "reason": row.reason} for level, row in levels])
    elif levels:
        print_table(
            ("LEVEL", "LINE", "KEY", "VALUE", "REASON"), ((level, row.line, row.key or "-", row.value or "-", row.reason) for level, row in levels)
        )
    count = sum(level == "fault" for level, _ in levels)
    if count:
        besides = f" and {counted(len(levels) - count, 'warning')}" if len(levels) > count else ""
        print_note(f"{file} has {counted(count, 'fault')}{besides}")


def _environment_faults(config: "ProxyConfig") -> "Iterator[Fault]":
    """Faults of the environment variables, for which `serve` would not start."""
    from framegate.control.configuration.document import Fault
    from framegate.control.errors import StartError
    from framegate.control.telemetry.environment import judge

    try:
        judge(config.telemetry)
    except StartError as error:
        yield Fault(0, "telemetry", "", str(error))


@click.command(epilog=example("framegate serve --config framegate.yaml", "framegate serve --config framegate.yaml --log-format text"))
@click.option("--config", type=_FILE, required=True, help="The configuration file.")
@click.option("--log-format", type=click.Choice(["json", "text"]), help="Format of the log.  [default: log.format of the configuration, or json]")
def serve(config: pathlib.Path, log_format: "LogFormat | None") -> None:
    """Run the proxy until SIGTERM. Writes the log to standard output: a row for each closed connection and other events."""
    from framegate.control.serve import serve as serve_file

    sys.exit(serve_file(config, log_format))


@click.command(short_help="Run a demonstration on this machine.", epilog=example("framegate demo --seconds 20", "framegate demo --rate 2000"))
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="Duration of the load.")
@click.option("--rate", type=click.IntRange(1), default=20_000, show_default=True, help="Requests per second; each gets a response.")
@click.option("--connections", type=click.IntRange(1), default=32, show_default=True, help="Number of client connections.")
@click.option(
    "--directory",
    type=_FOLDER,
    help="Folder for all files; files of an earlier demo are deleted first.  [default: framegate-demo-UID in the folder for temporary files]",
)
def demo(seconds: float, rate: int, connections: int, directory: pathlib.Path | None) -> None:
    """Run a demonstration on this machine: TLS clients, the proxy, calls of the admin API, the tap, Spark tables, and a comparison of all counts."""
    from framegate.control.demo.run import run

    sys.exit(run(seconds=seconds, rate=rate, connections=connections, directory=directory))
