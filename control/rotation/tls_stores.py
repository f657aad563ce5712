"""Reloads certificates, keys and authorities: checked in a validator process, then in force in every processor or in none.

Of several stores that are new at once, those that are good go together, in one change; each of the others stays as it is, and says why.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from framegate.control.configuration.tls_files import (
    CertificateFacts,
    TlsFile,
    facts_from_row,
    revocation_lists,
    shown_of,
    tls_files,
    tls_sections,
    validity_of,
)
from framegate.control.errors import AbortedError, UnavailableError
from framegate.control.files import Contents, digest
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.source import Refusal, Reloader, Source
from framegate.control.status import CertificateStatus
from framegate.proxy.config.model import ProxyConfig, to_wire
from framegate.proxy.config.tls import ListenerTls, UpstreamTls
from framegate.proxy.server.messages import Change
from framegate.proxy.server.protocol import revoked_row
from framegate.proxy.server.rows import Store, listener_owner, pack_stores

KIND: Final = "tls"

Certificates = dict[str, dict[str, list[CertificateFacts]]]  # what is in the files of stores, by owner and path
Sections = dict[str, ListenerTls | UpstreamTls]
Judge = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers as ``framegate.control.rotation.questions.answer``. Raises what keeps it from it."""


class TlsStores(Reloader):
    """All stores of certificates of the configuration."""

    def __init__(self, supervisor: Supervisor, validator: Judge, certificates: Mapping[str, list[CertificateFacts]]) -> None:
        self._supervisor = supervisor
        self._validator = validator
        self._sections: Sections = {}
        self._files: dict[str, list[TlsFile]] = {}
        self._certificates: Certificates = {}
        self.validity: dict[str, tuple[float, float]] = {}  # of ``validity_of``, of all owners; changed in place
        self._put_config(supervisor.desired.config, certificates)

    def _put_config(self, config: ProxyConfig, certificates: Mapping[str, list[CertificateFacts]]) -> set[str]:
        """Have the sections of a configuration. Returns the owners whose section is another one than before."""
        before, self._sections = self._sections, _sections(config)
        self._files = {}
        for item in tls_files(config):
            self._files.setdefault(item.owner, []).append(item)
        changed = {owner for owner, section in self._sections.items() if before.get(owner) != section}
        self._certificates = {
            owner: {item.path: certificates[item.path] for item in files} if owner in changed else self._certificates[owner]
            for owner, files in self._files.items()
        }
        for name in [name for name in self.validity if name.rpartition("/")[0] not in self._sections and name not in self._sections]:
            del self.validity[name]
        for owner in self._files:
            self._set_validity(owner)
        return changed

    @staticmethod
    def owners(config: ProxyConfig) -> list[str]:
        return list(_sections(config))

    def staged(self, config: ProxyConfig, files: Mapping[str, str], certificates: Mapping[str, list[CertificateFacts]]) -> dict[str, Store]:
        """The stores of another configuration whose sections are not those in force; arguments as of ``Loaded``."""
        before, named = self._supervisor.desired.stores, tls_files(config)
        return {
            owner: Store(
                before[owner].number + 1 if owner in before else 1,
                shown_of(section, certificates),
                {item.path: files[item.path] for item in named if item.owner == owner},
            )
            for owner, section in _sections(config).items()
            if self._sections.get(owner) != section
        }

    async def revoked(self, config: ProxyConfig, stores: Mapping[str, Store]) -> dict[str, list[str]]:
        """The serial numbers of the certificates that only the lists of another configuration's ``staged`` stores revoke, by listener, where their
        connections are to end. Raises UnavailableError: they could not be read.
        """
        before, lists = self._supervisor.desired.stores, {}
        for owner in stores.keys() & before.keys() & self._sections.keys():
            old, new = _lists(self._sections[owner], before[owner]), _lists(_sections(config)[owner], stores[owner])
            if set(new) - set(old):
                lists[owner] = {"old": old, "new": new}
        if not lists:
            return {}
        try:
            found = await self._validator({"revocations": lists})
        except (OSError, RuntimeError, TimeoutError) as error:
            text = f"lists of revoked certificates could not be compared: {str(error) or 'no answer in time'}"
            raise UnavailableError(text, reason="READER_FAILED") from error
        return _closing(config, found)

    def follow(self, config: ProxyConfig, certificates: Mapping[str, list[CertificateFacts]], rotation: Rotation) -> None:
        """Have the sections of another configuration, whose stores are in force."""
        before = set(self._sections)
        changed = self._put_config(config, certificates)
        for owner in before - self._sections.keys():
            rotation.forget(owner, KIND)
        for source in self.sources():
            if source.owner in changed:
                rotation.watch(source)

    def _set_validity(self, owner: str) -> None:
        self.validity.update(validity_of(owner, self._sections[owner], self._certificates[owner]))

    def sources(self) -> list[Source]:
        stores = self._supervisor.desired.stores
        return [
            Source(
                owner=owner,
                kind=KIND,
                paths=tuple(dict.fromkeys(item.path for item in files)),
                reloader=self,
                in_force=digest(_as_bytes(stores[owner])),
            )
            for owner, files in self._files.items()
        ]

    async def take(self, found: Mapping[str, Contents]) -> dict[str, Refusal]:
        """See ``Reloader``. Owners that a configuration removed, or gave another section, meanwhile are left out."""
        desired, sections = self._supervisor.desired, self._sections
        texts = {
            owner: {path: content.decode("latin-1") for path, content in contents.items()}
            for owner, contents in found.items()
            if owner in sections and contents.keys() == desired.stores[owner].files.keys()
        }
        if not texts:
            return {}
        question = {
            "config": to_wire(desired.config),
            "stores": {owner: {"old": dict(desired.stores[owner].files), "new": files} for owner, files in texts.items()},
        }
        answer = await self._validator(question)
        refused = {owner: Refusal(*why) for owner, why in answer["refusals"].items()}
        good = {owner: files for owner, files in texts.items() if owner not in refused}
        if not good:
            return refused
        rows = answer["certificates"]
        certificates = {owner: {path: [facts_from_row(row) for row in each] for path, each in rows[owner].items()} for owner in good}
        try:
            await self._put(good, sections, certificates, answer["revoked"])
        except AbortedError as error:
            refused |= dict.fromkeys(good, Refusal("", str(error)))
        return refused

    async def _put(self, files: dict[str, dict[str, str]], sections: Sections, certificates: Certificates, revoked: Mapping[str, list[str]]) -> None:
        """Put the stores of sections that are still in force everywhere, and end the connections of revoked certificates; or raise AbortedError."""
        change, stores = Change(), dict[str, Store]()

        def check() -> None:
            before = self._supervisor.desired.stores
            for owner, each in files.items():
                if self._sections.get(owner) == sections[owner]:
                    stores[owner] = Store(before[owner].number + 1, shown_of(sections[owner], certificates[owner]), each)
            change["stores"] = pack_stores(stores)
            rows = _closing(self._supervisor.desired.config, {owner: revoked[owner] for owner in stores})
            if rows:
                change["revoked"] = {listener: revoked_row(serials=serials) for listener, serials in rows.items()}

        def commit(desired: DesiredState) -> None:
            desired.stores = {**desired.stores, **stores}
            for owner in stores:
                self._certificates[owner] = certificates[owner]
                self._set_validity(owner)

        try:
            await self._supervisor.change(lambda slot: change, commit, check)
        except UnavailableError as error:
            if error.reason != "CHANGE_PENDING":
                raise  # otherwise it is decided: who has not confirmed it will have it, and has a row of the log

    def statuses(self, rotation: Rotation) -> list[CertificateStatus]:
        """The certificates in force, in the order of the configuration."""
        found = []
        for owner, files in self._files.items():
            store = self._supervisor.desired.stores[owner]
            refusal = rotation.refusal(owner, KIND)
            for item in files:
                found += [
                    CertificateStatus(
                        owner=owner,
                        use=item.name,
                        file=item.path,
                        position=position,
                        subject=facts.subject,
                        names=facts.names,
                        issuer=facts.issuer,
                        serial=facts.serial,
                        fingerprint=facts.fingerprint,
                        begins=facts.begins,
                        ends=facts.ends,
                        store=store.number,
                        loaded_ns=rotation.loaded_ns(owner, KIND),
                        error="" if refusal is None else str(refusal),
                    )
                    for position, facts in enumerate(self._certificates[owner][item.path])
                    if item.name != "key"
                ]
        return found


def _sections(config: ProxyConfig) -> Sections:
    return {owner: section for owner, (_, section) in tls_sections(config).items()}


def _lists(section: ListenerTls | UpstreamTls, store: Store) -> list[str]:
    """The contents of the files of revoked certificates."""
    return [store.files[path] for path in revocation_lists(section)]


def _closing(config: ProxyConfig, revoked: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Serial numbers by listener, from those by owner: only of listeners that end the connections of revoked certificates."""
    owners = {item.name: listener_owner(item.name) for item in config.listeners if item.close_revoked}
    return {name: revoked[owner] for name, owner in owners.items() if revoked.get(owner)}


def _as_bytes(store: Store) -> dict[str, bytes]:
    return {path: content.encode("latin-1") for path, content in store.files.items()}
