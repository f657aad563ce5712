"""A configuration, loaded in a child process that ends.

The child also reads the certificates and keys that the configuration names, at the moment at which they are validated. The YAML reader and
cryptography take 2 MiB, 11 with TLS, which the control process would otherwise keep. The child is a fork of a process without threads, which takes a
few milliseconds.
"""

import os
import pathlib
import pickle
import threading
import traceback
from typing import NamedTuple, NoReturn

from framegate.control.configuration.document import ConfigurationError, Fault
from framegate.control.configuration.tls_files import CertificateFacts
from framegate.proxy.config.model import ProxyConfig

__all__ = ["Loaded", "load_in_child"]


class Loaded(NamedTuple):
    """A model without a fault, its warnings, and by path the contents (``read_tls_files``) and certificates (``describe_files``) of the files that it
    names.
    """

    config: ProxyConfig
    warnings: list[Fault]
    tls_files: dict[str, str]
    certificates: dict[str, list[CertificateFacts]]


def load_in_child(path: str | pathlib.Path) -> Loaded:
    """The model of a file, as of ``load``, with its warnings and the files that it names. Call it before there are threads.

    Raises:
        ConfigurationError: with every fault.
        RuntimeError: the child failed; its stderr says why.
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
    found: Loaded | list[Fault] = pickle.loads(answer)
    if isinstance(found, list):
        raise ConfigurationError(found)
    return found


def _answer(path: str | pathlib.Path, descriptor: int) -> NoReturn:
    code = 1
    try:
        with open(descriptor, "wb") as pipe:
            pickle.dump(_load(path), pipe)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # without exit handlers, which belong to the parent


def _load(path: str | pathlib.Path) -> Loaded | list[Fault]:
    from framegate.control.configuration.load import examine
    from framegate.control.configuration.tls_files import describe_files, read_tls_files

    found = examine(path)
    if found.config is None:
        return found.faults
    try:
        files = read_tls_files(found.config)
    except ConfigurationError as error:  # one of them changed since it was examined
        return error.faults
    return Loaded(found.config, found.warnings, files, describe_files(files))
