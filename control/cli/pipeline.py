"""The command ``pipeline run``: each option is a field of ``PipelineSettings``, under its name."""

import pathlib
import sys
from typing import Any

import click

from control.cli.kinds import DURATION, JAVA_HEAP, SIZE
from control.cli.options import example

__all__ = ["pipeline"]

_FOLDER = click.Path(file_okay=False, path_type=pathlib.Path)


def _place(ctx: click.Context, param: click.Parameter, value: str | None) -> pathlib.Path | str | None:
    """A folder of this host, or a path of Spark's as it was written."""
    return value if value is None or "://" in value else pathlib.Path(value)


def _seconds(ctx: click.Context, param: click.Parameter, value: int | None) -> float | None:
    return None if value is None else value / 1000


def _settings(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Spark settings of ``key=value``."""
    pairs = [value.partition("=") for value in values]
    for value, (key, equals, _) in zip(values, pairs, strict=True):
        if not key.startswith("spark.") or not equals:
            raise click.BadParameter(f"{value!r} is no Spark setting: write spark.some.key=value", ctx, param)
    return {key: value for key, _, value in pairs}


@click.group(epilog=example("framegate pipeline run --source var/tap --output var/tables --available-now"))
def pipeline() -> None:
    """The Spark side of the tap."""


@pipeline.command(
    epilog=example(
        "framegate pipeline run --source var/tap --output var/tables --available-now",
        "framegate pipeline run --source var/tap --output var/sizes --consumer sizes --payload none --from 2026-05-01T08:00:00Z",
    )
)
@click.option("--source", type=_FOLDER, required=True, help="The tap's directory.")
@click.option("--output", callback=_place, metavar="DIRECTORY", required=True, help="The folder of the tables; for delta also a path of Spark's.")
@click.option("--available-now", is_flag=True, help="Read what is there, then end; otherwise go on until stopped.")
@click.option("--trigger", "trigger_ms", type=DURATION, default="800ms", show_default=True, help="Between the starts of two batches.")
@click.option("--max-bytes-per-trigger", type=SIZE, help="Of the log, in one batch.  [default: an eighth of the heap, 128MiB at most]")
@click.option("--payload", metavar="none|SIZE|full", default="full", show_default=True, help="Of each body, to keep; full: as the heap allows.")
@click.option("--format", type=click.Choice(["parquet", "delta"]), default="parquet", show_default=True, help="Of the tables.")
@click.option("--compact-every", "compact_ms", type=DURATION, default="1m", show_default=True, help="Small files of the tables are joined; 0: never.")
@click.option("--expire-after", "expire_after_s", type=DURATION, callback=_seconds, help="Delete hours of the tables that are older.")
@click.option("--checkpoint", callback=_place, metavar="DIRECTORY", help="Spark's own log.  [default: OUTPUT/_checkpoint]")
@click.option("--consumer", default="pipeline", show_default=True, help='The name under which retention knows the job, of no other job; "": unknown.')
@click.option("--from", "start_from", metavar="earliest|latest|TIME", default="earliest", show_default=True, help="Where a new checkpoint begins.")
@click.option(
    "--fail-on-data-loss/--go-on",
    default=True,
    show_default=True,
    help="What to do when something is gone before it was read: fail, or go on with a gap in its place.",
)
@click.option("--memory", type=JAVA_HEAP, default="1g", show_default=True, help="Heap of the Java virtual machine.")
@click.option("--cores", type=click.IntRange(1), help="Tasks at once.  [default: one for each processor, and 256MiB of heap]")
@click.option("--conf", "spark", metavar="KEY=VALUE", multiple=True, callback=_settings, help="A Spark setting; may be given again.")
@click.option("--telemetry", metavar="ENDPOINT", default="", help="Spans and metrics of batches go there, over OTLP.  [default: as OTEL_* say]")
def run(**told: Any) -> None:
    """Read the tap's log into tables: frames, traffic by minute, requests, gaps, completeness. Prints JSON rows."""
    try:
        from proxy.pipeline.run import run_pipeline
        from proxy.pipeline.settings import PipelineSettings
    except ImportError as error:
        click.echo(f"framegate: the pipeline needs {error.name}, which is not installed: pip install 'framegate[spark]'", err=True)
        sys.exit(2)
    sys.exit(run_pipeline(PipelineSettings(**told)))
