"""Configurations as mappings: one value changed, and what is then said of them."""

import copy
import json
import pathlib
from typing import Any

from control.configuration.fault import ConfigurationError
from control.configuration.load import examine, validate


def faults(data: dict[str, Any]) -> list[tuple[str, str]]:
    try:
        validate(data, pathlib.Path("/tmp"))
    except ConfigurationError as error:
        return [(fault.key, fault.reason) for fault in error.faults]
    return []


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
