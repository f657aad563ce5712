"""Certificates, keys and authorities: the files that a configuration names, and what is in them when framegate starts.

All processors serve the contents that control read, judged and sent to them at its start, whenever they are started themselves. Files that are
replaced later are handled in ``framegate.control.rotation``.
"""

import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from framegate.control.configuration.certificate import CertificateFacts, describe, describe_revocations, short_fingerprint
from framegate.control.configuration.document import ConfigurationError, Fault
from framegate.proxy.config.key import keys
from framegate.proxy.config.model import ProxyConfig
from framegate.proxy.config.tls import ListenerTls, UpstreamTls
from framegate.proxy.errors import ConfigError
from framegate.proxy.server.rows import Store, listener_owner, upstream_owner

__all__ = [
    "MAX_BYTES",
    "TlsFile",
    "describe_files",
    "ends_of",
    "first_stores",
    "identities",
    "named_paths",
    "read_tls_files",
    "revocation_lists",
    "shown_of",
    "tls_files",
    "tls_sections",
]

MAX_BYTES: Final = 16 * 1024 * 1024
"""Of all files together: they go to each processor in one message."""


class TlsFile(NamedTuple):
    """A file that a section of the configuration names: the section's owner, as in ``framegate.proxy.server.rows``, the whole key, as in
    ``listeners[0].tls.key``, and its last part.
    """

    owner: str
    key: str
    name: str
    path: str


def tls_sections(config: ProxyConfig) -> dict[str, tuple[str, ListenerTls | UpstreamTls]]:
    """Every section of TLS with its key, by owner."""
    found: dict[str, tuple[str, ListenerTls | UpstreamTls]] = {}
    for index, listener in enumerate(config.listeners):
        if listener.tls is not None:
            found[listener_owner(listener.name)] = f"listeners[{index}].tls", listener.tls
    for index, upstream in enumerate(config.upstreams):
        if upstream.tls is not None:
            found[upstream_owner(upstream.name)] = f"upstreams[{index}].tls", upstream.tls
    return found


def tls_files(config: ProxyConfig) -> list[TlsFile]:
    """All files that are named, in the order of the configuration; a file is there once for each key that names it."""
    return [TlsFile(owner, *found) for owner, (key, section) in tls_sections(config).items() for found in named_paths(section, key)]


def named_paths(section: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Every file and folder that a section of the configuration names: the whole key (``key`` is the section's), its last name, the path."""
    for name, said in keys(typing.cast(type, type(section))).items():
        value, within = getattr(section, name), f"{key}.{name}" if key else name
        for place, item in enumerate(value) if isinstance(value, tuple) else [(-1, value)]:
            where = within if place < 0 else f"{within}[{place}]"
            if dataclasses.is_dataclass(item):
                yield from named_paths(item, where)
            elif said.unit == "path" and item is not None:
                yield where, name, item


def read_tls_files(config: ProxyConfig) -> dict[str, str]:
    """The contents of the files that a configuration names, by path; each character stands for one byte (Latin-1).

    Raises:
        ConfigurationError: one cannot be read, they are too large, or they do not fit together: a file changed since it was validated.
    """
    files: dict[str, bytes] = {}
    faults: list[Fault] = []
    left = MAX_BYTES
    for _, key, _, path in tls_files(config):
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


def _misfits(config: ProxyConfig, files: dict[str, bytes]) -> list[Fault]:
    """Faults when the contexts are built that the processors will build."""
    if not files:
        return []
    from framegate.proxy.network.tls_context import server_store, upstream_context  # it loads OpenSSL

    faults = []
    for key, tls in tls_sections(config).values():
        try:
            if isinstance(tls, ListenerTls):
                server_store(tls, files)
            else:
                upstream_context(tls, files)
        except ConfigError as error:
            faults.append(Fault(0, key, "", str(error)))
    return faults


def describe_files(files: Mapping[str, str]) -> dict[str, list[CertificateFacts]]:
    """The certificates or revocation lists in files, by path; an empty list for a file with neither, or that only OpenSSL can read."""
    return {path: _described(content.encode("latin-1")) for path, content in files.items()}


def _described(pem: bytes) -> list[CertificateFacts]:
    for read in (describe, describe_revocations):
        with contextlib.suppress(ValueError):
            return read(pem)
    return []


def first_stores(config: ProxyConfig, files: Mapping[str, str], certificates: Mapping[str, list[CertificateFacts]]) -> dict[str, Store]:
    """The store of each owner at the start."""
    named = tls_files(config)
    return {
        owner: Store(1, shown_of(section, certificates), {item.path: files[item.path] for item in named if item.owner == owner})
        for owner, (_, section) in tls_sections(config).items()
    }


def identities(section: ListenerTls | UpstreamTls) -> list[tuple[str, str]]:
    """The files of the certificates that peers may be shown, with the first of the hosts that each is for; "" is for all other hosts."""
    own = [] if section.certificate is None else [("", section.certificate)]
    others = section.certificates if isinstance(section, ListenerTls) else ()
    return own + [(item.names[0], item.certificate) for item in others]


def shown_of(section: ListenerTls | UpstreamTls, certificates: Mapping[str, list[CertificateFacts]]) -> str:
    """The short fingerprint of the certificate that is shown to peers who ask for no other host; empty: none."""
    return next((short_fingerprint(certificates[path][0].fingerprint) for host, path in identities(section) if not host and certificates[path]), "")


def ends_of(owner: str, section: ListenerTls | UpstreamTls, certificates: Mapping[str, list[CertificateFacts]]) -> dict[str, float]:
    """When each readable certificate ends that peers may be shown: by owner, or ``OWNER/HOST`` with the first of its hosts; and when the first of the
    section's revocation lists ends, as ``OWNER/crl``.
    """
    found = {f"{owner}/{host}" if host else owner: certificates[path][0].ends for host, path in identities(section) if certificates[path]}
    lists = [facts.ends for path in revocation_lists(section) for facts in certificates[path]]
    return {**found, f"{owner}/crl": min(lists)} if lists else found


def revocation_lists(section: ListenerTls | UpstreamTls) -> list[str]:
    """The files of revocation lists that a section names."""
    if not isinstance(section, ListenerTls):
        return []
    return [*section.crl, *(path for item in section.certificates for path in item.crl)]
