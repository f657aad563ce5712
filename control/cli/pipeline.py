"""``framegate pipeline run``, ``sql``, ``shell`` and ``report``. Each option of ``run`` sets the field of ``PipelineSettings`` with its name."""

import contextlib
import datetime
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from framegate.control.cli.kinds import DURATION, JAVA_HEAP, MOMENT, SIZE, Kind
from framegate.control.cli.options import example, output_option
from framegate.control.cli.output import print_json, print_note, print_table


def _place(text: str) -> pathlib.Path | str:
    """A folder of this host, or a URI that Spark understands."""
    return text if "://" in text else pathlib.Path(text)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.startswith("spark.") or not equals:
        raise ValueError("is not a Spark setting: write spark.some.key=value")
    return key, value


_PLACE: Kind[pathlib.Path | str] = Kind("directory", _place)
_tables = click.option("--tables", type=_PLACE, required=True, help="The tables: the --output of the job, a folder or a URL.")


@click.group(epilog=example("framegate pipeline run --source var/tap --output var/tables --available-now"))
def pipeline() -> None:
    """The Spark job that writes the tap's log into tables, and questions to the tables."""


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """A package that is missing, or tables that cannot be read, end the command with one line and code 2; a query that fails, with 1."""
    try:
        yield
    except ImportError as error:
        print_note(f"the pipeline needs {error.name}, which is not installed: pip install 'framegate[spark]'")
        sys.exit(2)
    except ValueError as error:  # TableError, QueryError
        print_note(str(error))
        sys.exit(1 if type(error).__name__ == "QueryError" else 2)


@pipeline.command(
    epilog=example(
        "framegate pipeline run --source var/tap --output var/tables --available-now",
        "framegate pipeline run --source var/tap --output var/sizes --consumer sizes --payload none --from 2026-05-01T08:00:00Z",
    )
)
@click.option("--source", type=_PLACE, required=True, help="The tap's directory, or the URL of a fleet's or a node's log in an object store.")
@click.option("--output", type=_PLACE, required=True, help="Folder of the tables, or their URL in an object store.")
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
@click.option("--checkpoint", type=_PLACE, help="Folder of Spark's checkpoint. Needed if OUTPUT is a URL.  [default: OUTPUT/_checkpoint]")
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
    """Read the tap's log and write it as tables: frames, requests, partitions of Kafka's topics, groups, traffic by minute, gaps, completeness,
    nodes. Logs JSON rows to standard output.
    """
    with _failures():
        from framegate.proxy.pipeline.run import run_pipeline
        from framegate.proxy.pipeline.settings import PipelineSettings
    sys.exit(run_pipeline(PipelineSettings(**{**told, "spark": dict(told["spark"])})))


@pipeline.command(epilog=example('framegate pipeline sql --tables var/tables "SELECT topic, sum(records) FROM kafka_partitions GROUP BY topic"'))
@_tables
@click.argument("query")
@output_option
def sql(tables: pathlib.Path | str, query: str, output: str) -> None:
    """Run a query on the tables, and print its rows. It needs no Java. The SQL is that of DataFusion, which is close to PostgreSQL's."""
    with _failures():
        from framegate.proxy.pipeline.sql import open_tables

        rows = open_tables(tables)(query)
    show(rows, output)


@pipeline.command(epilog=example("framegate pipeline shell --tables var/tables", "framegate pipeline shell --tables s3://example-tables/production"))
@_tables
@output_option
def shell(tables: pathlib.Path | str, output: str) -> None:
    """Ask the tables one query after the other. A query ends with a semicolon; help lists the commands."""
    with _failures():
        from framegate.control.cli.pipeline_shell import Shell

        Shell(tables, lambda rows: show(rows, output)).run()


def show(rows: Any, output: str) -> None:
    """Print the rows of an Arrow table; if there are none, a note says so."""
    if output != "json" and rows.num_rows == 0:
        print_note(f"no rows of {', '.join(rows.column_names)}")
    elif output == "json":
        print_json([{name: _plain(value) for name, value in row.items()} for row in rows.to_pylist()])
    else:
        print_table(rows.column_names, [[_text(value) for value in row.values()] for row in rows.to_pylist()])


def _text(value: object) -> Any:
    """A value for a table: "-" for none, the items of a list one after the other."""
    return "-" if value in (None, []) else ", ".join(str(_plain(item)) for item in value) if isinstance(value, list) else _plain(value)


def _plain(value: object) -> Any:
    """A value for JSON: times as in RFC 3339, bytes in hexadecimal."""
    if isinstance(value, datetime.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value if isinstance(value, int | float | str | None) else str(value)


@pipeline.command(epilog=example("framegate pipeline report --tables var/tables --since 1h --out report.html"))
@_tables
@click.option("--since", "since_ns", type=MOMENT, default="1h", show_default=True, help="Begin: a time, or how long ago.")
@click.option("--until", "until_ns", type=MOMENT, default="0s", show_default="now", help="End.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=pathlib.Path), required=True, help="File for the page.")
def report(tables: pathlib.Path | str, since_ns: int, until_ns: int, out: pathlib.Path) -> None:
    """Write a page with plots: traffic by principal and topic, latency by API, sizes, errors, who is slow, completeness. One HTML file without
    scripts.
    """
    with _failures():
        from framegate.proxy.pipeline.page import page
        from framegate.proxy.pipeline.sql import open_tables

        since, until = (datetime.datetime.fromtimestamp(moment_ns / 1e9, datetime.UTC) for moment_ns in (since_ns, until_ns))
        text = page(open_tables(tables), str(tables), since, until)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        print_note(f"--out: {out}: {error.strerror}")
        sys.exit(1)
