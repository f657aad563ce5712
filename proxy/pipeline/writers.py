"""The writer of an output, by its format."""

from pathlib import Path

from framegate.proxy.pipeline.tables import COMPACT_MS, GRACE_S, TableWriter, Writer

__all__ = ["make_writer", "spark_settings"]


def make_writer(
    output: str | Path,
    *,
    format: str = "parquet",
    compact_ms: int = COMPACT_MS,
    expire_after_s: float | None = None,
    grace_s: float = GRACE_S,
) -> Writer:
    """The writer of an output.

    Args:
        output: parquet: a folder on a local disk, made when missing; delta: that, or any path of Spark's (``s3a://…``, ``hdfs://…``).
        format: parquet or delta.
        compact_ms: small files are looked for this often; 0: never.
        expire_after_s: hours that ended longer ago than this are deleted; None: never.
        grace_s: what is in no table any more stays on the disk this long, for readers that began before.

    Raises:
        ValueError: the output cannot be used: damaged, or of an earlier layout. One line.
        OSError: it cannot be written to.
    """
    if format == "delta":
        from framegate.proxy.pipeline.delta import DeltaWriter  # needs a package that Parquet does not

        return DeltaWriter(str(output), compact_ms=compact_ms, expire_after_s=expire_after_s, grace_s=grace_s)
    return TableWriter(Path(output), compact_ms=compact_ms, expire_after_s=expire_after_s, grace_s=grace_s)


def spark_settings(format: str) -> dict[str, str]:
    """What the session must be told for tables of a format, besides what it is told anyway.

    Raises:
        ValueError: the Spark that is installed cannot write them. One line, which says what to install.
    """
    if format == "delta":
        from framegate.proxy.pipeline.delta import delta_settings

        return delta_settings()
    return {}
