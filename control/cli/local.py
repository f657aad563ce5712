"""The commands that need no running framegate: check, serve, demo."""

import pathlib
import sys
from typing import TYPE_CHECKING

import click

from control.cli.options import example, output_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from control.configuration.fault import Fault
    from control.demo.run import Upstream
    from proxy.config.log import LogFormat
    from proxy.config.model import ProxyConfig

__all__ = ["check", "demo", "serve"]

_FOLDER = click.Path(file_okay=False, path_type=pathlib.Path)
_TROUBLES = ("slow-consumer", "oversized-frames", "wrong-certificate", "pool-exhausted", "full-tap", "killed-processor")
_FILE = click.Path(exists=True, dir_okay=False, path_type=pathlib.Path)


@click.command(
    short_help="Name every fault of a configuration.",
    epilog=example("framegate check --config framegate.yaml", "framegate check --config framegate.yaml --output json"),
)
@click.option("--config", type=_FILE, required=True, help="The configuration file.")
@output_option
def check(config: pathlib.Path, output: str) -> None:
    """Name every fault of a configuration at once, with line, key, value and reason.

    Looks at this machine, too, as the user who runs it: files and keys, folders that must be writable, addresses that must be this machine's (each
    is bound for a moment), the OTEL_* variables of this environment. What another process uses now is a warning, so that a new configuration can be
    checked beside the framegate that it is for; `serve` would not start there. So are expired certificates, a disk smaller than the tap's budget, a
    container with less memory than may be needed (with the sum and its parts), and keys that have no effect.

    Exit codes: 0 good, with or without warnings; 2 faulty.
    """
    from control.cli.output import counted, print_json, print_table
    from control.configuration.load import examine

    found = examine(config, in_use=True)
    faults = found.faults if found.config is None else [*found.faults, *_environment_faults(found.config)]
    levels = [("fault", fault) for fault in faults] + [("warning", fault) for fault in found.warnings]
    if output == "json":
        print_json([{"level": level, "line": row.line, "key": row.key, "value": row.value, "reason": row.reason} for level, row in levels])
    elif levels:
        print_table(
            ("LEVEL", "LINE", "KEY", "VALUE", "REASON"), ((level, row.line, row.key or "-", row.value or "-", row.reason) for level, row in levels)
        )
    besides = f" and {counted(len(found.warnings), 'warning')}" if found.warnings else ""
    if faults:
        click.echo(f"framegate: {config} has {counted(len(faults), 'fault')}{besides}", err=True)
        sys.exit(2)
    click.echo(f"framegate: {config} is good{', with' + besides[4:] if besides else ''}", err=True)


def _environment_faults(config: "ProxyConfig") -> "Iterator[Fault]":
    """What `serve` would refuse of the environment's variables here."""
    from control.configuration.fault import Fault
    from control.errors import StartError
    from control.telemetry.environment import judge

    try:
        judge(config.telemetry)
    except StartError as error:
        yield Fault(0, "telemetry", "", str(error))


@click.command(epilog=example("framegate serve --config framegate.yaml", "framegate serve --config framegate.yaml --log-format text"))
@click.option("--config", type=_FILE, required=True, help="The configuration file.")
@click.option("--log-format", type=click.Choice(["json", "text"]), help="How rows are written.  [default: as the configuration says, else json]")
def serve(config: pathlib.Path, log_format: "LogFormat | None") -> None:
    """Run the proxy until SIGTERM. Prints rows: one for each closed connection, and what else happens."""
    from control.serve import serve as serve_file

    sys.exit(serve_file(config, log_format))


@click.command(
    short_help="Show everything on this machine.",
    epilog=example("framegate demo --seconds 20", "framegate demo --upstream kafka", "framegate demo --telemetry --pictures pictures"),
)
@click.option("--seconds", type=click.FloatRange(1), help="How long the load runs, or with --telemetry each trouble.  [default: 60, or 12]")
@click.option("--rate", type=click.IntRange(1), default=20_000, show_default=True, help="Frames per second, each answered.")
@click.option("--connections", type=click.IntRange(1), default=32, show_default=True, help="Connections of the load.")
@click.option("--upstream", type=click.Choice(["framed", "kafka"]), default="framed", show_default=True, help="Built in, or a real Kafka broker.")
@click.option(
    "--directory",
    type=_FOLDER,
    help="Where everything lies; what an earlier demo left there is deleted first.  [default: framegate-demo-UID in the folder for temporary files, "
    "framegate-demo-kafka-UID with --upstream kafka, framegate-demo-telemetry-UID with --telemetry]",
)
@click.option("--plain", is_flag=True, help="Lines instead of the live view.")
@click.option("--telemetry", is_flag=True, help="Instead: a collector, Prometheus and the dashboards, in calm and in six troubles.")
@click.option("--trouble", "troubles", type=click.Choice(_TROUBLES), multiple=True, help="With --telemetry: this one only; may be repeated.")
@click.option("--pictures", type=_FOLDER, help="With --telemetry: where to draw every dashboard, as PNG.")
@click.option("--dashboards", type=_FOLDER, default="deploy/dashboards", show_default=True, help="With --telemetry: the dashboards' files.")
def demo(
    seconds: float | None,
    rate: int,
    connections: int,
    upstream: "Upstream",
    directory: pathlib.Path | None,
    plain: bool,
    telemetry: bool,
    troubles: tuple[str, ...],
    pictures: pathlib.Path | None,
    dashboards: pathlib.Path,
) -> None:
    """Show everything on this machine: TLS clients, the proxy, the control plane at work, the tap, Spark tables, a report that compares counts.

    With --telemetry: what the dashboards show of it, when all is well and when it is not. Needs Prometheus, and wants a collector (`make dashboards`
    gets both), no Java. --rate, --connections and --upstream have no effect then. Exit codes: 0 good; 1 a trouble was not seen on the first dashboard
    within one interval, or a panel has no data; 2 something is missing on this machine.
    """
    if telemetry:
        from control.demo.telemetry.run import run as run_telemetry

        sys.exit(run_telemetry(dashboards, seconds=seconds or 12.0, only=troubles, pictures=pictures, directory=directory, plain=plain))
    if troubles or pictures:
        raise click.UsageError("--trouble and --pictures go with --telemetry")
    from control.demo.run import run

    sys.exit(run(seconds=seconds or 60.0, rate=rate, connections=connections, upstream=upstream, directory=directory, plain_view=plain))
