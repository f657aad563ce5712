"""``python -m framegate.control.logs``: writes the documents about rows into ``deploy/`` of this checkout."""

import pathlib
import sys

from framegate.control.logs.schema import schema_text, table_text

if __name__ == "__main__":
    _folder = pathlib.Path(__file__).resolve().parent.parent.parent / "deploy"
    if not _folder.is_dir():
        sys.exit(f"there is no folder {_folder}: this is for a checkout")
    (_folder / "log.schema.json").write_text(schema_text())
    (_folder / "log.md").write_text(table_text())
