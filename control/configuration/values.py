"""Converted values as rules ask for them: what a key is, given or not, and whether its place in the file holds something that is wrong."""

import dataclasses
import re
from typing import Any, Final

from control.configuration.document import Document, Path, key_of

__all__ = ["Values", "default_of", "given", "names_below", "unique_names"]

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
Values = dict[str, Any]


def default_of(model: type, name: str) -> Any:
    """What a field of the model is that nobody set."""
    return next(field.default for field in dataclasses.fields(model) if field.name == name)


def given(section: Values, model: type, name: str, document: Document, path: Path) -> Any:
    """A value as converted, or its default; None when it stands in the file and was found wrong."""
    return section.get(name, None if name in names_below(document, path) else default_of(model, name))


def names_below(document: Document, path: Path) -> set[str]:
    """The keys that stand in the file below a path, right or wrong, without those that are empty."""
    return {str(item[-1]) for item in document.texts if item[:-1] == path}


def unique_names(document: Document, items: list[tuple[Path, Values]]) -> None:
    """Faults for names that are badly formed or used twice in a section."""
    first: dict[str, Path] = {}
    for path, item in items:
        name = item.get("name")
        if not isinstance(name, str):
            continue
        if not _NAME.fullmatch(name):
            document.add((*path, "name"), "must be 1 to 63 lower-case letters, digits and hyphens, a letter or digit first")
        if name in first:
            document.add((*path, "name"), f"is already the name of {key_of(first[name])} (line {document.line(first[name])})")
        first.setdefault(name, path)
