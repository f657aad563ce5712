"""What a listener with a handler asks of the rest: a name that can be one, whole frames, somebody who says something."""

import importlib.machinery
import importlib.util
import keyword
import os
from collections.abc import Sequence
from typing import Any

from control.configuration.document import Document, Path
from control.configuration.values import Values, names_below

__all__ = ["handler_places", "handler_rules"]


def handler_rules(document: Document, values: Values, listeners: list[tuple[Path, Values]]) -> None:
    """Each listener has a handler or an upstream, and what a handler needs."""
    handled = [(path, item) for path, item in listeners if isinstance(item.get("handler"), str)]
    if not values.get("upstreams", []) and len(handled) < max(1, len(listeners)):
        reason = "needs at least one entry" if "upstreams" in document.data else "is required"
        document.add(("upstreams",), f"{reason}, unless each listener has a handler")
    for path, _ in listeners:
        if not {"handler", "upstream"} & names_below(document, path):
            document.add((*path, "upstream"), "is required where there is no handler")
    for path, listener in handled:
        _handled(document, path, listener)
    if "handlers" in document.data and not handled:
        document.warn(("handlers",), "has no effect: no listener has a handler, so there are no processes for them", "")


def _handled(document: Document, path: Path, listener: Values) -> None:
    if not _is_name(listener["handler"]):
        document.add((*path, "handler"), "must be package.module:name, the module that Python imports and what in it is the handler")
    forwarding = listener.get("forwarding") or {}
    for direction in ("requests", "responses"):
        if forwarding.get(direction) == "cut_through":
            document.add((*path, "forwarding", direction), "must be whole, or left out: a handler gets each frame whole", "cut_through")
    if listener.get("upstream") is None and listener.get("half_close_before_data") == "wait":
        document.warn((*path, "half_close_before_data"), "has no effect: a handler answers, and says nothing first")


def _is_name(text: str) -> bool:
    module, colon, name = text.partition(":")
    return bool(colon) and all(part.isidentifier() and not keyword.iskeyword(part) for part in (*module.split("."), name))


def handler_places(document: Document, values: Values) -> None:
    """Whether handlers can be found, without importing anything of them: on ``handlers.path``, then where Python looks.

    A package may say only when it is imported where its modules are, so of a module within one this is a warning.
    """
    listeners = values.get("listeners")
    handled = [(index, item) for index, item in enumerate(listeners if isinstance(listeners, list) else []) if isinstance(item.get("handler"), str)]
    handlers = values.get("handlers")
    folders = handlers.get("path") if handled and isinstance(handlers, dict) else None
    if not isinstance(folders, list):
        return
    for index, folder in enumerate(folders):
        if not os.path.isdir(folder):
            document.add(("handlers", "path", index), "is not a folder", folder)
    for index, listener in handled:
        if _is_name(listener["handler"]):
            _place(document, ("listeners", index, "handler"), listener["handler"].partition(":")[0], folders)


def _place(document: Document, path: Path, module: str, folders: list[str]) -> None:
    first, *within = module.split(".")
    found = _top(first, folders)
    if found is None:
        document.add(path, f"cannot be found: there is no module {first} in {', '.join(folders) or 'handlers.path'}, nor where Python looks")
        return
    name = first
    for part in within:
        locations = found.submodule_search_locations
        if locations is None:
            document.add(path, f"cannot be found: {name} is a module, not a package")
            return
        name = f"{name}.{part}"
        found = _spec(name, list(locations))
        if found is None:
            document.warn(path, f"may not be found: there is no module {name} in {', '.join(locations)}")
            return


def _top(name: str, folders: list[str]) -> Any:
    try:
        return _spec(name, folders) or importlib.util.find_spec(name)
    except ValueError:  # a module that runs as a program, and has no place
        return None


def _spec(name: str, locations: Sequence[str]) -> Any:
    return importlib.machinery.PathFinder.find_spec(name, locations)
