"""Write the files of ``deploy/`` that are generated from the code, for ``make pages``."""

import pathlib
from typing import Final

import configuration_pages
import kustomize_components
import log_pages
import metrics_page

FOLDER: Final = pathlib.Path(__file__).resolve().parent


def pages() -> dict[str, str]:
    """The texts, by path below ``deploy/``."""
    return {
        "docs/configuration.md": configuration_pages.page_text(),
        "examples/framegate.yaml": configuration_pages.example_text(),
        "log.schema.json": log_pages.schema_text(),
        "log.md": log_pages.table_text(),
        "metrics.md": metrics_page.page_text(),
        **{f"kustomize/{name}": text for name, text in kustomize_components.files().items()},
    }


if __name__ == "__main__":
    for name, text in pages().items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
