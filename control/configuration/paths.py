"""Relative paths of a configuration become absolute ones, from the folder that its file lies in."""

import pathlib
from typing import Any

__all__ = ["make_absolute"]


def make_absolute(values: dict[str, Any], folder: pathlib.Path) -> None:
    """Rewrite in place every path of converted values (the model's names): TLS files, the tap's directory, Unix sockets."""
    for listener in _mappings(values.get("listeners")):
        _address(listener, "address", folder)
        _files(listener.get("tls"), ("certificate", "key", "client_ca"), folder)
    for upstream in _mappings(values.get("upstreams")):
        _files(upstream.get("tls"), ("ca", "certificate", "key"), folder)
        endpoints = upstream.get("endpoints")
        if isinstance(endpoints, list):
            upstream["endpoints"] = [_absolute_address(item, folder) if isinstance(item, str) else item for item in endpoints]
    _files(values.get("tap"), ("directory",), folder)
    if isinstance(values.get("admin"), dict):
        _address(values["admin"], "address", folder)


def _mappings(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _files(values: object, keys: tuple[str, ...], folder: pathlib.Path) -> None:
    if isinstance(values, dict):
        for key in keys:
            if isinstance(values.get(key), str) and values[key]:
                values[key] = str(folder / values[key])


def _address(values: dict[str, Any], key: str, folder: pathlib.Path) -> None:
    if isinstance(values.get(key), str):
        values[key] = _absolute_address(values[key], folder)


def _absolute_address(address: str, folder: pathlib.Path) -> str:
    if address.startswith("unix:") and len(address) > 5:
        return f"unix:{folder / address[5:]}"
    return address
