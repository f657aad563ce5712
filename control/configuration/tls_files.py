"""Certificates, keys and authorities as they were when framegate started: what every processor serves until it ends, whenever it was started.

A file that is replaced meanwhile changes nothing: otherwise a processor that is started again would serve another certificate than its
neighbours, and nobody could say which one clients meet.
"""

import typing
from collections.abc import Iterator
from typing import Final

from control.configuration.fault import ConfigurationError, Fault
from proxy.config.key import keys
from proxy.config.model import ProxyConfig
from proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls
from proxy.errors import ConfigError

__all__ = ["MAX_BYTES", "read_tls_files"]

MAX_BYTES: Final = 16 * 1024 * 1024
"""Of all files together: they go to each processor in one message."""


def read_tls_files(config: ProxyConfig) -> dict[str, str]:
    """What is in the files that a configuration names, by path; each character stands for one byte (Latin-1).

    Raises:
        ConfigurationError: one cannot be read, they are too large, or what was read does not fit together: a file changed since it was validated.
    """
    files: dict[str, bytes] = {}
    faults: list[Fault] = []
    left = MAX_BYTES
    for key, path in _named(config):
        if path in files:
            continue
        try:
            with open(path, "rb") as file:
                files[path] = file.read(left + 1)
        except OSError as error:
            faults.append(Fault(0, key, path, f"cannot be read: {error.strerror or error}"))
            continue
        left -= len(files[path])
        if left < 0:
            raise ConfigurationError([Fault(0, key, path, f"certificates, keys and authorities have more than {MAX_BYTES >> 20} MiB together")])
    faults = faults or _misfits(config, files)
    if faults:
        raise ConfigurationError(faults)
    return {path: content.decode("latin-1") for path, content in files.items()}


def _named(config: ProxyConfig) -> list[tuple[str, str]]:
    """Keys and paths of all files."""
    sections: list[tuple[str, ListenerTls | UpstreamTls | None]] = [
        *((f"listeners[{index}].tls", listener.tls) for index, listener in enumerate(config.listeners)),
        *((f"upstreams[{index}].tls", upstream.tls) for index, upstream in enumerate(config.upstreams)),
    ]
    return [place for section, tls in sections if tls is not None for place in _paths(section, tls)]


def _paths(section: str, tls: ListenerTls | UpstreamTls | NamedCertificate) -> Iterator[tuple[str, str]]:
    """Keys and paths of one section, with those within it."""
    for name, key in keys(typing.cast(type, type(tls))).items():
        value, place = getattr(tls, name), f"{section}.{name}"
        for index, item in enumerate(value if isinstance(value, tuple) else ()):
            if isinstance(item, NamedCertificate):
                yield from _paths(f"{place}[{index}]", item)
            elif key.unit == "path":
                yield f"{place}[{index}]", item
        if key.unit == "path" and isinstance(value, str):
            yield place, value


def _misfits(config: ProxyConfig, files: dict[str, bytes]) -> list[Fault]:
    """Build what the processors will build."""
    if not files:
        return []
    from proxy.network.tls_context import server_store, upstream_context  # it loads OpenSSL

    faults = []
    for index, listener in enumerate(config.listeners):
        if listener.tls is not None:
            try:
                server_store(listener.tls, files)
            except ConfigError as error:
                faults.append(Fault(0, f"listeners[{index}].tls", "", str(error)))
    for index, upstream in enumerate(config.upstreams):
        if upstream.tls is not None:
            try:
                upstream_context(upstream.tls, files)
            except ConfigError as error:
                faults.append(Fault(0, f"upstreams[{index}].tls", "", str(error)))
    return faults
