"""Certificates, keys and authorities as they were when framegate started: what every processor serves until it ends, whenever it was started.

A file that is replaced meanwhile changes nothing: otherwise a processor that is started again would serve another certificate than its
neighbours, and nobody could say which one clients meet.
"""

import typing
from typing import Final

from control.configuration.fault import ConfigurationError, Fault
from proxy.config.key import keys
from proxy.config.model import ProxyConfig
from proxy.config.tls import ListenerTls, UpstreamTls
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
    return [
        (f"{section}.{name}", path)
        for section, tls in sections
        if tls is not None
        for name, key in keys(typing.cast(type, type(tls))).items()
        if key.unit == "path" and (path := getattr(tls, name)) is not None
    ]


def _misfits(config: ProxyConfig, files: dict[str, bytes]) -> list[Fault]:
    """Build what the processors will build."""
    if not files:
        return []
    from proxy.network.tls_context import client_context, server_context  # it loads OpenSSL

    faults = []
    for index, listener in enumerate(config.listeners):
        if listener.tls is not None:
            identity = listener.tls
            try:
                server_context(identity.certificate, identity.key, client_auth=identity.client_auth, client_ca=identity.client_ca, files=files)
            except ConfigError as error:
                faults.append(Fault(0, f"listeners[{index}].tls", "", str(error)))
    for index, upstream in enumerate(config.upstreams):
        if upstream.tls is not None:
            tls = upstream.tls
            try:
                client_context(ca=tls.ca, certificate=tls.certificate, key=tls.key, files=files)
            except ConfigError as error:
                faults.append(Fault(0, f"upstreams[{index}].tls", "", str(error)))
    return faults
