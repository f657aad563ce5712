"""Configurations as mappings: one value changed, and what is then said of them."""

import copy
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from framegate.control.configuration.document import ConfigurationError, Document, document_of
from framegate.control.configuration.load import examine, judge
from framegate.control.configuration.reading import read_document
from framegate.proxy.config.model import ProxyConfig


def load(path: str | pathlib.Path) -> ProxyConfig:
    """The model of a file. Raises ConfigurationError with every fault."""
    return _model(read_document(pathlib.Path(path)))


def validate(data: Mapping[str, Any], folder: pathlib.Path | None = None) -> ProxyConfig:
    """The model of a mapping with the file's keys; lines are 0. Raises ConfigurationError with every fault."""
    return _model(document_of(data, folder))


def _model(document: Document) -> ProxyConfig:
    found = judge(document, machine=True)
    if found.config is None:
        raise ConfigurationError(found.faults)
    return found.config


def faults(data: dict[str, Any]) -> list[tuple[str, str]]:
    try:
        validate(data, pathlib.Path("/tmp"))
    except ConfigurationError as error:
        return [(fault.key, fault.reason) for fault in error.faults]
    return []


def misnamed(data: dict[str, Any], cases: Iterable[tuple[str, object, str, str]]) -> list[object]:
    """The cases that go wrong. Each is a path and the value that is put there (as of ``put``), the one key at which a fault is found, and a part
    of its reason.
    """
    wrong = []
    for path, value, key, part in cases:
        found = faults(put(data, path, value))
        if [item for item, reason in found if part in reason] != [key]:
            wrong.append((path, value, found))
    return wrong


def put(data: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """A copy with one value changed; ``path`` as ``listeners.0.tls.key``; a value of ``...`` removes the key."""
    result = copy.deepcopy(data)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    target: Any = result
    for part in parents:
        target = target[part]
    if value is ...:
        del target[last]
    elif isinstance(target, list) and last == len(target):
        target.append(value)
    else:
        target[last] = value
    return result


def warnings(data: dict[str, Any], folder: pathlib.Path) -> list[tuple[str, str]]:
    (folder / "framegate.yaml").write_text(json.dumps(data))
    found = examine(folder / "framegate.yaml")
    assert found.faults == []
    return [(item.key, item.reason) for item in found.warnings]
