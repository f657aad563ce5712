"""From a file to the model, with every fault and warning.

Relative paths in a file (certificates, keys, authorities, the tap's directory, Unix sockets) start at the file's folder; of a link, at the link's.
The model holds absolute paths, so a processor needs no folder of its own.
"""

import dataclasses
import os
import pathlib
import socket

from framegate.control.configuration.document import NODE, ZONE, ConfigurationError, Document, Fault, Findings
from framegate.control.configuration.machine import apply_machine
from framegate.control.configuration.reading import parse_document, read_document
from framegate.control.configuration.rules import apply_rules
from framegate.control.configuration.schema import build


def examine(path: str | pathlib.Path, text: str | None = None, *, in_use: bool = False) -> Findings:
    """All faults and warnings of a file on this machine. ``text``: what is examined as if it stood in the file; None: what is in it. ``in_use``: warn
    of what another process uses now, such as the framegate that is to be replaced; a start finds out by itself.
    """
    file = pathlib.Path(path)
    try:
        return judge(read_document(file) if text is None else parse_document(text, file.absolute().parent), machine=True, in_use=in_use)
    except ConfigurationError as error:
        return Findings(None, error.faults, [])


def judge(document: Document, *, machine: bool, in_use: bool = False) -> Findings:
    """All faults and warnings of a document. ``machine``: whether this machine must provide what the document asks for; otherwise no folder, file or
    address is looked at. ``in_use``: as of ``examine``.
    """
    if not isinstance(document.data, dict):
        return Findings(None, document.faults, [])
    document.files = machine
    config = build(document)
    if not config.node:  # so replicas with one configuration differ
        config = dataclasses.replace(config, node=os.environ.get(NODE) or socket.gethostname())
    if not config.zone:
        config = dataclasses.replace(config, zone=os.environ.get(ZONE, ""))
    bound = apply_rules(document, config)
    model = None if document.faults else config
    if machine:
        apply_machine(document, config, bound, in_use=in_use)
    return Findings(None if document.faults else config, _sorted(document.faults), _sorted(document.warnings), model)


def _sorted(faults: list[Fault]) -> list[Fault]:
    return sorted(set(faults), key=lambda fault: (fault.line, fault.key, fault.reason))
