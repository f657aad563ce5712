"""``framegate pipeline run``. Each option sets the field of ``PipelineSettings`` with its name."""

import pathlib
import sys
from typing import Any

import click

from framegate.control.cli.kinds import DURATION, JAVA_HEAP, SIZE, Kind
from framegate.control.cli.options import example
from framegate.control.cli.output import print_note


def _place(text: str) -> pathlib.Path | str:
    """A folder of this host, or a URI that Spark understands."""
    return text if "://" in text else pathlib.Path(text)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.startswith("spark.") or not equals:
        raise ValueError("is not a Spark setting: write spark.some.key=value")
    return key, value


_PLACE: Kind[pathlib.Path | str] = Kind("directory", _place)


@click.group(epilog=example("framegate pipeline run --source var/tap --output var/tables --available-now"))
def pipeline() -> None:
    """The Spark job that writes the tap's log into tables."""


@pipeline.command(
    epilog=example(
        "framegate pipeline run --source var/tap --output var/tables --available-now",
        "framegate pipeline run --source var/tap --output var/sizes --consumer sizes --payload none --from 2026-05-01T08:00:00Z",
    )
)
@click.option("--source", type=_PLACE, required=True, help="The tap's directory, or the URL of a fleet's or a node's log in an object store.")
@click.option("--output", type=_PLACE, required=True, help="Folder of the tables.")
@click.option("--available-now", is_flag=True, help="Read the log to its present end, then exit.  [default: continue until stopped]")
@click.option("--trigger", "trigger_ms", type=DURATION, default="800ms", show_default=True, help="Interval between the starts of two batches.")
@click.option(
    "--max-bytes-per-trigger", type=SIZE, help="Largest part of the log that one batch reads.  [default: an eighth of the heap, at most 128MiB]"
)
@click.option(
    "--payload", metavar="none|SIZE|full", default="full", show_default=True, help="How much of each body to keep. full: as much as the heap allows."
)
@click.option(
    "--compact-every", "compact_ms", type=DURATION, default="1m", show_default=True,
    help="Interval for joining small files of the tables; 0 means never.",
)  # fmt: skip
@click.option(
    "--expire-after", "expire_after_s", type=Kind("duration", lambda text: DURATION.convert(text, None, None) / 1000),
    help="Delete rows of the tables that are older than this, by whole hours.  [default: never]",
)  # fmt: skip
@click.option("--checkpoint", type=_PLACE, help="Folder of Spark's checkpoint.  [default: OUTPUT/_checkpoint]")
@click.option(
    "--consumer", default="pipeline", show_default=True,
    help='Name of the job as a consumer of the log; retention keeps unread data for it. Each job needs its own. "": not registered.',
)  # fmt: skip
@click.option(
    "--from", "start_from", metavar="earliest|latest|TIME", default="earliest", show_default=True,
    help="Where to start reading when there is no checkpoint.",
)  # fmt: skip
@click.option(
    "--fail-on-data-loss/--go-on", default=True, show_default=True,
    help="When data was deleted before it was read: fail, or write a gap row and continue.",
)  # fmt: skip
@click.option("--memory", type=JAVA_HEAP, default="1g", show_default=True, help="Heap of the Java virtual machine, for example 1g.")
@click.option("--cores", type=click.IntRange(1), help="Number of parallel tasks.  [default: one per CPU, but at most one per 256MiB of heap]")
@click.option(
    "--conf", "spark", type=Kind("key=value", _setting), multiple=True,
    help="A Spark setting, for example spark.sql.shuffle.partitions=4. May be repeated.",
)  # fmt: skip
@click.option(
    "--telemetry", metavar="ENDPOINT", default="", help="OTLP endpoint for spans and metrics of batches.  [default: from the OTEL_* variables]"
)
def run(**told: Any) -> None:
    """Read the tap's log and write it as tables: frames, traffic by minute, requests, gaps, completeness. Logs JSON rows to standard output."""
    try:
        from framegate.proxy.pipeline.run import run_pipeline
        from framegate.proxy.pipeline.settings import PipelineSettings
    except ImportError as error:
        print_note(f"the pipeline needs {error.name}, which is not installed: pip install 'framegate[spark]'")
        sys.exit(2)
    sys.exit(run_pipeline(PipelineSettings(**{**told, "spark": dict(told["spark"])})))
