"""From a file to the model: ``check`` names every fault, ``load`` gives the model or raises them all.

Relative paths in a file (certificates, keys, authorities, the tap's directory, Unix sockets) start at the file's own folder; the model holds
absolute ones, so that a processor needs no folder of its own.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from control.configuration.document import Document, document_of, read_document
from control.configuration.fault import ConfigurationError, Fault
from control.configuration.paths import make_absolute
from control.configuration.rules import apply_rules
from control.configuration.schema import build, convert
from proxy.config.model import ProxyConfig

__all__ = ["check", "load", "validate"]


def check(path: str | pathlib.Path) -> list[Fault]:
    """Every fault of a file, by line; empty when it is good."""
    try:
        return _validate(read_document(pathlib.Path(path)))[1]
    except ConfigurationError as error:
        return error.faults


def load(path: str | pathlib.Path) -> ProxyConfig:
    """The model of a file. Raises ConfigurationError with every fault."""
    return _model_or_raise(read_document(pathlib.Path(path)))


def validate(data: Mapping[str, Any], folder: pathlib.Path | None = None) -> ProxyConfig:
    """The model of a mapping with the file's keys; lines are 0. Raises ConfigurationError with every fault."""
    return _model_or_raise(document_of(data, folder))


def _model_or_raise(document: Document) -> ProxyConfig:
    config, faults = _validate(document)
    if config is None or faults:
        raise ConfigurationError(faults)
    return config


def _validate(document: Document) -> tuple[ProxyConfig | None, list[Fault]]:
    if not isinstance(document.data, dict):
        return None, document.faults
    values = convert(document)
    make_absolute(values, document.folder)
    config = build(document, values)
    apply_rules(document, values)
    faults = sorted(set(document.faults), key=lambda fault: (fault.line, fault.key))
    return config, faults
