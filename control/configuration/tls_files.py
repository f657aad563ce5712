"""Certificates, keys and authorities: which files a configuration names, and what is in them when framegate starts.

All processors serve the same, whenever they are started: not what lies on the disk then, but what control read, judged and sent them. Files that
are replaced later are taken by ``framegate.control.rotation``.
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
    """A file that a section of the configuration names.

    Attributes:
        owner: whose section it is, as ``framegate.proxy.server.rows`` calls it.
        key: of the whole configuration, as in ``listeners[0].tls.key``; ``name`` is its last part.
    """

    owner: str
    key: str
    name: str
    path: str


def tls_sections(config: ProxyConfig) -> dict[str, tuple[str, ListenerTls | UpstreamTls]]:
    """Every section that speaks TLS, with its key, by owner."""
    found: dict[str, tuple[str, ListenerTls | UpstreamTls]] = {}
    for index, listener in enumerate(config.listeners):
        if listener.tls is not None:
            found[listener_owner(listener.name)] = f"listeners[{index}].tls", listener.tls
    for index, upstream in enumerate(config.upstreams):
        if upstream.tls is not None:
            found[upstream_owner(upstream.name)] = f"upstreams[{index}].tls", upstream.tls
    return found


def tls_files(config: ProxyConfig) -> list[TlsFile]:
    """All files that are named, in the order of the configuration; one that several name comes several times."""
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
    """What is in the files that a configuration names, by path; each character stands for one byte (Latin-1).

    Raises:
        ConfigurationError: one cannot be read, they are too large, or what was read does not fit together: a file changed since it was validated.
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
    """Build what the processors will build."""
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
    """The certificates, or revocation lists, that are in files, by path; a file that has none, or that only OpenSSL can read, has an empty list."""
    return {path: _described(content.encode("latin-1")) for path, content in files.items()}


def _described(pem: bytes) -> list[CertificateFacts]:
    for read in (describe, describe_revocations):
        with contextlib.suppress(ValueError):
            return read(pem)
    return []


def first_stores(config: ProxyConfig, files: Mapping[str, str], certificates: Mapping[str, list[CertificateFacts]]) -> dict[str, Store]:
    """What each owner has at the start, of what was read."""
    named = tls_files(config)
    return {
        owner: Store(1, shown_of(section, certificates), {item.path: files[item.path] for item in named if item.owner == owner})
        for owner, (_, section) in tls_sections(config).items()
    }


def identities(section: ListenerTls | UpstreamTls) -> list[tuple[str, str]]:
    """What peers may be shown: the file of each, behind the first of the hosts that it is for; nothing stands for all others."""
    own = [] if section.certificate is None else [("", section.certificate)]
    others = section.certificates if isinstance(section, ListenerTls) else ()
    return own + [(item.names[0], item.certificate) for item in others]


def shown_of(section: ListenerTls | UpstreamTls, certificates: Mapping[str, list[CertificateFacts]]) -> str:
    """The fingerprint of the certificate that peers are shown who ask for no host of their own; empty: none."""
    return next((short_fingerprint(certificates[path][0].fingerprint) for host, path in identities(section) if not host and certificates[path]), "")


def ends_of(owner: str, section: ListenerTls | UpstreamTls, certificates: Mapping[str, list[CertificateFacts]]) -> dict[str, float]:
    """When each certificate ends that peers are shown, of those that can be read, by what it is for: the owner, and ``OWNER/HOST`` for one that is
    for certain hosts, of which that is the first. And when the first of its revocation lists does, as ``OWNER/crl``.
    """
    found = {f"{owner}/{host}" if host else owner: certificates[path][0].ends for host, path in identities(section) if certificates[path]}
    lists = [facts.ends for path in revocation_lists(section) for facts in certificates[path]]
    return {**found, f"{owner}/crl": min(lists)} if lists else found


def revocation_lists(section: ListenerTls | UpstreamTls) -> list[str]:
    """The files of them that a section names."""
    if not isinstance(section, ListenerTls):
        return []
    return [*section.crl, *(path for item in section.certificates for path in item.crl)]
