"""A configuration, loaded in a child process that ends.

With it come the certificates and keys that it names, read in the same moment in which they are validated. What only the loading needs, a YAML
reader and cryptography for certificates, is 2 MiB, 11 with TLS: a control process would keep it as long as it runs. The child is a fork of a
process that has no threads yet, so it costs a few milliseconds and not the start of an interpreter.
"""

import os
import pathlib
import pickle
import threading
import traceback
from typing import NamedTuple, NoReturn

from framegate.control.configuration.certificate import CertificateFacts
from framegate.control.configuration.document import ConfigurationError, Fault
from framegate.proxy.config.model import ProxyConfig

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
    found: Loaded | list[Fault] = pickle.loads(answer)
    if isinstance(found, list):
        raise ConfigurationError(found)
    return found


def _answer(path: str | pathlib.Path, descriptor: int) -> NoReturn:
    """The child's life."""
    code = 1
    try:
        with open(descriptor, "wb") as pipe:
            pickle.dump(_load(path), pipe)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # not our process' own end: what the parent has registered for that is the parent's


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
