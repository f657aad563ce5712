"""A configuration, loaded in a child process that ends.

The child also reads the certificates and keys that the configuration names, at the moment at which they are validated. The YAML reader and
cryptography take 2 MiB, 11 with TLS, which the control process would otherwise keep. The child is a fork of a process without threads, which takes a
few milliseconds. Once there are threads, another process is asked (``load_row``).
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import threading
import traceback
from typing import Any, Final, NamedTuple, NoReturn

from framegate.control.configuration.document import MAX_BYTES, ZONE, ConfigurationError, Fault
from framegate.control.configuration.tls_files import CertificateFacts, facts_from_row
from framegate.control.errors import DeniedError
from framegate.control.files import FileError, digest, read_file
from framegate.proxy.config.model import ProxyConfig, from_wire, to_wire

_SHOWN: Final = 20  # keys in an error


class Loaded(NamedTuple):
    """A model without a fault, its warnings, and by path the contents (``read_tls_files``) and certificates (``describe_files``) of the files that it
    names. ``path``: of the file, absolute; ``digest``: of what is in it (``control.files``), read no later than the model; of a text empty.
    """

    config: ProxyConfig
    warnings: list[Fault]
    tls_files: dict[str, str]
    certificates: dict[str, list[CertificateFacts]]
    path: str = ""
    digest: bytes = b""


def load_in_child(path: str | pathlib.Path) -> Loaded:
    """The model of a file without a fault, with its warnings and the files that it names. Call it before there are threads. Raises
    ConfigurationError: with every fault; RuntimeError: the child failed; its stderr says why.
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
    return loaded_from_row(json.loads(answer))


def _answer(path: str | pathlib.Path, descriptor: int) -> NoReturn:
    code = 1
    try:
        row = json.dumps(_row(_load(path)))
        with open(descriptor, "w", encoding="ascii") as pipe:
            pipe.write(row)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # without exit handlers, which belong to the parent


def _load(path: str | pathlib.Path, text: str | None = None) -> Loaded | list[Fault]:
    from framegate.control.configuration.load import examine
    from framegate.control.configuration.tls_files import describe_files, read_tls_files

    file = os.path.abspath(path)
    before = b""
    if text is None:
        with contextlib.suppress(FileError):  # a fault of ``examine``
            before = digest({file: read_file(file, MAX_BYTES)})
    found = examine(path, text)
    if found.config is None:
        return found.faults
    try:
        files = read_tls_files(found.config)
    except ConfigurationError as error:  # one of them changed since it was examined
        return error.faults
    return Loaded(found.config, found.warnings, files, describe_files(files), file, before)


def load_row(question: dict[str, Any]) -> dict[str, Any]:
    """As ``load_in_child``, for a process that is asked by one which cannot fork. ``question``: ``path``; ``text``, which is loaded as if it stood in
    the file, or None; ``zone``: the value of the environment variable ``ZONE``; ``named``: all of this machine that the text may name
    (``named_here``), or None: anything. Returns: JSON values for ``loaded_from_row``.
    """
    os.environ[ZONE] = question["zone"]
    if question["named"] is not None:
        refused = _refused(question["path"], question["text"], {(name, value) for name, value in question["named"]})
        if refused is not None:
            return refused
    return _row(_load(question["path"], question["text"]))


def _row(found: Loaded | list[Fault]) -> dict[str, Any]:
    if isinstance(found, list):
        return _faults(found)
    return {
        "config": to_wire(found.config),
        "warnings": [dataclasses.asdict(fault) for fault in found.warnings],
        "tls_files": found.tls_files,
        "certificates": {path: [dataclasses.asdict(item) for item in items] for path, items in found.certificates.items()},
        "path": found.path,
        "digest": found.digest.hex(),
    }


def _faults(faults: list[Fault]) -> dict[str, Any]:
    return {"faults": [dataclasses.asdict(fault) for fault in faults]}


def _refused(path: str, text: str, named: set[tuple[str, str]]) -> dict[str, Any] | None:
    """The answer about a text that has faults, or names more of this machine than it may; None: it may be loaded. Nothing that it names is read."""
    from framegate.control.configuration.load import judge
    from framegate.control.configuration.reading import parse_document
    from framegate.control.configuration.tls_files import named_here

    try:
        found = judge(parse_document(text, pathlib.Path(path).parent), machine=False)
    except ConfigurationError as error:
        return _faults(error.faults)
    if found.config is None:
        return _faults(found.faults)
    unnamed = [key for item, key in named_here(found.config).items() if item not in named]
    return {"unnamed": unnamed} if unnamed else None


def loaded_from_row(row: dict[str, Any]) -> Loaded:
    """What ``load_row`` found. Raises ConfigurationError with every fault; DeniedError: the text names more of this machine than it may."""
    if "unnamed" in row:
        shown = ", ".join(row["unnamed"][:_SHOWN])
        text = f"over TCP, a text names only files, Unix sockets and handlers that the configuration names already; the local socket may set {shown}"
        raise DeniedError(text, reason="LOCAL_SOCKET_NEEDED", keys=",".join(row["unnamed"][:_SHOWN]))
    if "faults" in row:
        raise ConfigurationError([Fault(**fault) for fault in row["faults"]])
    return Loaded(
        config=from_wire(row["config"]),
        warnings=[Fault(**fault) for fault in row["warnings"]],
        tls_files=row["tls_files"],
        certificates={path: [facts_from_row(item) for item in items] for path, items in row["certificates"].items()},
        path=row["path"],
        digest=bytes.fromhex(row["digest"]),
    )
