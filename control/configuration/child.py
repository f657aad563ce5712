"""A configuration, loaded in a child process that ends.

With it come the certificates and keys that it names, read in the same moment in which they are validated. What only the loading needs, a YAML
reader and cryptography for certificates, is 2 MiB, 11 with TLS: a control process would keep it as long as it runs. The child is a fork of a
process that has no threads yet, so it costs a few milliseconds and not the start of an interpreter.
"""

import dataclasses
import json
import os
import pathlib
import threading
import traceback
from typing import NamedTuple, NoReturn

from control.configuration.certificate import CertificateFacts, facts_from_row
from control.configuration.fault import ConfigurationError, Fault
from proxy.config.model import ProxyConfig, from_wire, to_wire

__all__ = ["Loaded", "load_in_child"]


class Loaded(NamedTuple):
    """A model without a fault.

    Attributes:
        config: the model.
        warnings: of what may be meant as it stands, but hardly is.
        tls_files: what ``read_tls_files`` found in the files that the model names.
        certificates: what ``describe_files`` said of them, by path.
    """

    config: ProxyConfig
    warnings: list[Fault]
    tls_files: dict[str, str]
    certificates: dict[str, list[CertificateFacts]]


def load_in_child(path: str | pathlib.Path) -> Loaded:
    """The model of a file, as ``load`` gives it, with its warnings and the files that it names; call it before there are threads.

    Raises:
        ConfigurationError: with every fault.
        RuntimeError: the child did not end well; it has said why on stderr.
    """
    assert threading.active_count() == 1, "a fork beside threads may wait for ever for what one of them held"
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(path, theirs)
    os.close(theirs)
    with open(ours, "rb") as pipe:
        answer = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise RuntimeError(f"the process that reads the configuration ended with {code}")
    row = json.loads(answer)
    faults, warnings = ([Fault(**fault) for fault in row[name]] for name in ("faults", "warnings"))
    if row["config"] is None:
        raise ConfigurationError(faults)
    certificates = {path: [facts_from_row(item) for item in found] for path, found in row["certificates"].items()}
    return Loaded(from_wire(row["config"]), warnings, row["tls_files"], certificates)


def _answer(path: str | pathlib.Path, descriptor: int) -> NoReturn:
    """The child's life."""
    code = 1
    try:
        with open(descriptor, "w", encoding="ascii") as pipe:
            json.dump(_row(path), pipe)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # not our process' own end: what the parent has registered for that is the parent's


def _row(path: str | pathlib.Path) -> dict[str, object]:
    from control.configuration.load import examine
    from control.configuration.tls_files import describe_files, read_tls_files

    found = examine(path)
    config, faults = found.config, found.faults
    files: dict[str, str] = {}
    if config is not None:
        try:
            files = read_tls_files(config)
        except ConfigurationError as error:  # one of them changed since it was examined
            config, faults = None, error.faults
    return {
        "config": None if config is None else to_wire(config),
        "faults": [dataclasses.asdict(fault) for fault in faults],
        "warnings": [dataclasses.asdict(fault) for fault in found.warnings],
        "tls_files": files,
        "certificates": {path: [dataclasses.asdict(item) for item in found] for path, found in describe_files(files).items()},
    }
