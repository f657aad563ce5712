"""Outputs of the pipeline, in a folder and on an S3 server, and what is in them."""

from pathlib import Path

from deltalake import DeltaTable

from framegate.proxy.pipeline.place import place_of
from framegate.proxy.tap.store import store_at

Output = Path | str


def opened(output: Output, table: str = "frames") -> DeltaTable:
    return DeltaTable(place_of(output).address(table))


def files_in(output: Output, table: str = "frames") -> set[str]:
    """The Parquet files in the folder of a table."""
    place = place_of(output)
    if isinstance(output, Path):
        found = [str(path.relative_to(output / table)) for path in (output / table).rglob("*.parquet")]
    else:
        store = store_at(place.root)
        import obstore

        prefix = store._name(table)
        found = [item["path"].removeprefix(f"{prefix}/") for page in obstore.list(store._client, prefix) for item in page]
    return {path for path in found if path.endswith(".parquet") and not path.startswith("_delta_log")}
