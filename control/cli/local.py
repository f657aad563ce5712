"""The commands that need no running framegate: check, serve, demo, pipeline run."""

import pathlib
import sys
from typing import TYPE_CHECKING

import click

from control.cli.kinds import DURATION, JAVA_HEAP, SIZE
from control.cli.options import example, output_option

if TYPE_CHECKING:
    from control.demo.run import Upstream

__all__ = ["check", "demo", "pipeline", "serve"]

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
    is bound for a moment). What another process uses now is a warning, so that a new configuration can be checked beside the framegate that it is
    for; `serve` would not start there. So are expired certificates, a disk smaller than the tap's budget, a container with less memory than may be
    needed (with the sum and its parts), and keys that have no effect.

    Exit codes: 0 good, with or without warnings; 2 faulty.
    """
    from control.cli.output import counted, print_json, print_table
    from control.configuration.load import examine

    found = examine(config, in_use=True)
    levels = [("fault", fault) for fault in found.faults] + [("warning", fault) for fault in found.warnings]
    if output == "json":
        print_json([{"level": level, "line": row.line, "key": row.key, "value": row.value, "reason": row.reason} for level, row in levels])
    elif levels:
        print_table(
            ("LEVEL", "LINE", "KEY", "VALUE", "REASON"), ((level, row.line, row.key or "-", row.value or "-", row.reason) for level, row in levels)
        )
    besides = f" and {counted(len(found.warnings), 'warning')}" if found.warnings else ""
    if found.faults:
        click.echo(f"framegate: {config} has {counted(len(found.faults), 'fault')}{besides}", err=True)
        sys.exit(2)
    click.echo(f"framegate: {config} is good{', with' + besides[4:] if besides else ''}", err=True)


@click.command(epilog=example("framegate serve --config framegate.yaml"))
@click.option("--config", type=_FILE, required=True, help="The configuration file.")
def serve(config: pathlib.Path) -> None:
    """Run the proxy until SIGTERM. Prints JSON rows: one for each closed connection, and what else happens."""
    from control.serve import serve as serve_file

    sys.exit(serve_file(config))


@click.command(short_help="Show everything on this machine.", epilog=example("framegate demo --seconds 20", "framegate demo --upstream kafka"))
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True, help="How long the load runs.")
@click.option("--rate", type=click.IntRange(1), default=20_000, show_default=True, help="Frames per second, each answered.")
@click.option("--connections", type=click.IntRange(1), default=32, show_default=True, help="Connections of the load.")
@click.option("--upstream", type=click.Choice(["framed", "kafka"]), default="framed", show_default=True, help="Built in, or a real Kafka broker.")
@click.option(
    "--directory", type=click.Path(file_okay=False, path_type=pathlib.Path), help="Where everything lies.  [default: a new temporary folder]"
)
@click.option("--plain", is_flag=True, help="Lines instead of the live view.")
def demo(seconds: float, rate: int, connections: int, upstream: "Upstream", directory: pathlib.Path | None, plain: bool) -> None:
    """Show everything on this machine: TLS clients, the proxy, the control plane at work, the tap, Spark tables, a report that compares counts."""
    from control.demo.run import run

    sys.exit(run(seconds=seconds, rate=rate, connections=connections, upstream=upstream, directory=directory, plain_view=plain))


@click.group(epilog=example("framegate pipeline run --source var/tap --output var/tables --available-now"))
def pipeline() -> None:
    """The Spark side of the tap."""


@pipeline.command(epilog=example("framegate pipeline run --source var/tap --output var/tables --available-now"))
@click.option("--source", type=click.Path(file_okay=False, path_type=pathlib.Path), required=True, help="The tap's directory.")
@click.option("--output", type=click.Path(file_okay=False, path_type=pathlib.Path), required=True, help="The folder of the tables.")
@click.option("--available-now", is_flag=True, help="Read what is there, then end; otherwise go on until stopped.")
@click.option("--trigger", type=DURATION, default="1s", show_default=True, help="Between the starts of two batches.")
@click.option("--max-bytes-per-trigger", type=SIZE, default="128MiB", show_default=True, help="Of the log, in one batch.")
@click.option("--checkpoint", type=click.Path(file_okay=False, path_type=pathlib.Path), help="Spark's own log.  [default: OUTPUT/_checkpoint]")
@click.option("--from-latest", is_flag=True, help="Begin with what is written from now on; only with a new checkpoint.")
@click.option("--memory", type=JAVA_HEAP, default="1g", show_default=True, help="Heap of the Java virtual machine.")
def run(
    source: pathlib.Path,
    output: pathlib.Path,
    available_now: bool,
    trigger: int,
    max_bytes_per_trigger: int,
    checkpoint: pathlib.Path | None,
    from_latest: bool,
    memory: str,
) -> None:
    """Read the tap's log into tables: frames, traffic by minute, requests. Prints JSON rows."""
    try:
        from proxy.pipeline.run import PipelineSettings, run_pipeline
    except ImportError as error:
        click.echo(f"framegate: the pipeline needs {error.name}, which is not installed: pip install 'framegate[spark]'", err=True)
        sys.exit(2)
    settings = PipelineSettings(
        source=source,
        output=output,
        available_now=available_now,
        trigger_ms=trigger,
        max_bytes_per_trigger=max_bytes_per_trigger,
        checkpoint=checkpoint,
        from_latest=from_latest,
        memory=memory,
    )
    sys.exit(run_pipeline(settings))
