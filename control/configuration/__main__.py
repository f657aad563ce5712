"""``python -P -m framegate.control.configuration`` writes the pages about the configuration's keys into ``deploy/`` of this checkout."""

import pathlib
import sys
from typing import Final

from framegate.control.configuration.manual import example_text, page_text

__all__ = ["PAGES"]

PAGES: Final = {"docs/configuration.md": page_text, "examples/framegate.yaml": example_text}

if __name__ == "__main__":
    _folder = pathlib.Path(__file__).resolve().parents[2] / "deploy"
    if not _folder.is_dir():
        sys.exit(f"there is no folder {_folder}: this is for a checkout")
    for _name, _text in PAGES.items():
        (_folder / _name).parent.mkdir(exist_ok=True)
        (_folder / _name).write_text(_text(), encoding="utf-8")
