"""Checks new certificates, keys and authorities before they replace those in force, in the validator process (``questions``).

``cryptography`` needs 7 MiB there. Questions have keys; answers have none.

It checks each store in this order and reports the first fault: every file can be parsed; each key belongs to its certificate; each certificate of a
chain is issued by the next one; none is expired or not yet valid; no issuer that was in the chain before is missing; no name is lost and the subject
is the same, unless the configuration allows it; the processors' context can be built; and a handshake with it succeeds (``trial``).
"""

import dataclasses
import datetime
import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from framegate.control.configuration.tls_files import (
    describe,
    describe_files,
    describe_revocations,
    facts_of,
    revocation_lists,
    revocations,
    tls_sections,
)
from framegate.control.rotation.source import Refusal, RefusedError
from framegate.control.rotation.trial import TrialError, try_as_client, try_as_server
from framegate.proxy.config.model import from_wire
from framegate.proxy.config.tls import ListenerTls, NamedCertificate, UpstreamTls
from framegate.proxy.errors import ConfigError
from framegate.proxy.network.tls_context import server_store, upstream_context

Tls = ListenerTls | UpstreamTls
Files = Mapping[str, bytes]


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """What is to be said of stores.

    ``question``: ``revocations``: lists by owner, each with ``old`` and ``new``. Or ``clients``: ``chains`` of certificates that were verified, each
    with the client's first, DER in hexadecimal; the ``authorities`` and revocation ``lists`` that are in force now, as PEM. Else ``config``, of
    ``to_wire``; ``stores``, by owner, each with ``old`` and ``new``: what is in its files, by path, as Latin-1.

    Returns:
        Of ``clients`` as ``refused`` the indices of chains that are not trusted, or have a revoked certificate.
        Of ``revocations`` the serial numbers, in hexadecimal, of the certificates that only the new lists revoke, by owner. Otherwise
        ``refusals``: ``[file, reason]`` by owner, of those that are not good; ``certificates``: those in the new files, by owner and path;
        ``revoked``: such serial numbers, by owner.
    """
    if "revocations" in question:
        return {owner: sorted(_serials(lists["new"]) - _serials(lists["old"])) for owner, lists in question["revocations"].items()}
    if "clients" in question:
        return {"refused": _refused_clients(**question["clients"])}
    sections = tls_sections(from_wire(question["config"]))
    refusals: dict[str, list[str]] = {}
    certificates = {}
    revoked = {}
    for owner, store in question["stores"].items():
        found = refusal_of(sections[owner][1], _as_bytes(store["old"]), _as_bytes(store["new"]), time.time())
        if found is not None:
            refusals[owner] = [found.file, found.reason]
        else:
            lists = revocation_lists(sections[owner][1])
            old, new = (_serials(store[files][path] for path in lists) for files in ("old", "new"))
            revoked[owner] = sorted(new - old)
        described = describe_files(store["new"])
        certificates[owner] = {path: [dataclasses.asdict(item) for item in items] for path, items in described.items()}
    return {"refusals": refusals, "certificates": certificates, "revoked": revoked}


def _serials(lists: Iterable[str]) -> set[str]:
    """Serial numbers of the certificates that lists revoke. Who made them is not looked at: one too many connects again."""
    return {f"{entry.serial_number:x}" for text in lists for each in revocations(text.encode("latin-1")) for entry in each}


def _refused_clients(chains: list[list[str]], authorities: str, lists: list[str]) -> list[int]:
    anchors = [item for item in x509.load_pem_x509_certificates(authorities.encode("latin-1")) if item.issuer == item.subject]
    revoked: dict[x509.Name, set[int]] = {}
    for each in (each for text in lists for each in revocations(text.encode("latin-1"))):
        revoked.setdefault(each.issuer, set()).update(entry.serial_number for entry in each)
    parsed = [[x509.load_der_x509_certificate(bytes.fromhex(item)) for item in chain] for chain in chains]
    return [index for index, chain in enumerate(parsed) if not _trusted(chain, anchors, revoked if lists else None)]


def _trusted(chain: list[x509.Certificate], anchors: list[x509.Certificate], revoked: Mapping[x509.Name, set[int]] | None) -> bool:
    """Whether a chain ends at an anchor, or could, and each certificate up to there has a list of its issuer, which does not revoke it. ``anchors``:
    the authorities, self-signed: OpenSSL accepts no others. ``revoked``: serial numbers by issuer; None: there are no lists.
    """
    for item in chain:
        if revoked is not None and (item.issuer not in revoked or item.serial_number in revoked[item.issuer]):
            return False
        if item in anchors or any(is_made_by(item, anchor) for anchor in anchors):
            return True
    return False


def is_made_by(item: x509.Certificate, maker: x509.Certificate) -> bool:
    """Whether the key of one certificate has signed another."""
    try:
        item.verify_directly_issued_by(maker)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _as_bytes(files: dict[str, str]) -> dict[str, bytes]:
    return {path: text.encode("latin-1") for path, text in files.items()}


def refusal_of(section: Tls, old: Files, new: Files, now: float) -> Refusal | None:
    """Why a store is refused; None when it is good. ``old``, ``new``: what is in its files, by path: in force, and to be. ``now``: seconds since
    1970.
    """
    chains = []
    try:
        for part in _parts(section):
            if part.certificate is not None:
                chains.append(_check_identity(section, part.certificate, part.key or part.certificate, old, new, now))
            authorities = part.ca if isinstance(part, UpstreamTls) else part.client_ca
            if authorities is not None:
                _check_authorities(authorities, new[authorities], now)
            if not isinstance(part, UpstreamTls):
                _check_revocations(part, old, new, now)
        _try(section, new, chains)
    except RefusedError as error:
        return error.refusal
    return None


def _parts(section: Tls) -> list[Tls | NamedCertificate]:
    return [section, *section.certificates] if isinstance(section, ListenerTls) else [section]


def _check_identity(section: Tls, certificate: str, key: str, old: Files, new: Files, now: float) -> list[x509.Certificate]:
    """One of our own certificates; its chain."""
    chain = _certificates(certificate, new[certificate])
    _check_key(key, new[key], chain[0])
    _check_chain(certificate, chain, now)
    before = _certificates(certificate, old[certificate])
    _check_makers(certificate, before, chain)
    _check_names(section, certificate, before[0], chain[0])
    return chain


def _certificates(path: str, pem: bytes) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(pem)
        describe(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise RefusedError(path, "holds no certificate in PEM form, or one that is broken") from None
    return found


def _check_key(path: str, pem: bytes, leaf: x509.Certificate) -> None:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except TypeError:
        raise RefusedError(path, "is encrypted; framegate reads keys without a password only") from None
    except (ValueError, UnsupportedAlgorithm):  # its words may hold some of it
        raise RefusedError(path, "holds no private key in PEM form, or one that is broken") from None
    if _spki(key.public_key()) != _spki(leaf.public_key()):
        raise RefusedError(path, "is not the key of the certificate")


def _spki(key: Any) -> bytes:
    return bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _check_chain(path: str, chain: list[x509.Certificate], now: float) -> None:
    for number, (item, maker) in enumerate(itertools.pairwise(chain), 1):
        if not is_made_by(item, maker):
            raise RefusedError(path, f"is no chain: certificate {number} was not made by certificate {number + 1}")
    for number, item in enumerate(chain, 1):
        facts = facts_of(item)
        if facts.ends <= now:
            raise RefusedError(path, f"expired on {_day(facts.ends)}{_which(number)}")
        if facts.begins > now:
            raise RefusedError(path, f"is not valid before {_day(facts.begins)}{_which(number)}")


def _which(number: int) -> str:
    return "" if number == 1 else f" (certificate {number} of the chain)"


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))


def _check_makers(path: str, before: list[x509.Certificate], after: list[x509.Certificate]) -> None:
    """An issuer in the old chain must be in the new chain, too, if the new certificate has the same issuer."""
    if len(after) > 1 or len(before) < 2 or after[0].issuer != before[0].issuer or after[0].issuer == after[0].subject:
        return
    if is_made_by(after[0], before[1]):
        raise RefusedError(path, f"is no whole chain: it lacks {facts_of(after[0]).issuer}, which came along with the certificate in force")


def _check_names(section: Tls, path: str, before: x509.Certificate, after: x509.Certificate) -> None:
    old, new = facts_of(before), facts_of(after)
    lost = sorted(set(old.names) - set(new.names))
    if lost and section.lost_names == "refuse":
        raise RefusedError(path, f"lacks names that the certificate in force has: {', '.join(lost)} (lost_names)")
    if _canonical(before.subject) != _canonical(after.subject) and section.changed_subject == "refuse":
        raise RefusedError(path, f"has the subject {new.subject!r}, and the certificate in force {old.subject!r} (changed_subject)")


def _canonical(name: x509.Name) -> list[frozenset[tuple[str, str]]]:
    """A subject without what makes no difference (RFC 5280, 7.1): letters' case, spaces outside and in rows."""
    return [frozenset((item.oid.dotted_string, " ".join(_text(item.value).split()).casefold()) for item in part) for part in name.rdns]


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.hex()


def _check_authorities(path: str, pem: bytes, now: float) -> None:
    """At least one authority must be in force."""
    found = _certificates(path, pem)
    facts = [facts_of(item) for item in found]
    if all(item.ends <= now for item in facts):
        raise RefusedError(path, f"expired on {_day(max(item.ends for item in facts))}, all that is in it")
    if not any(map(_may_sign, found)):
        raise RefusedError(path, "holds no authority: no certificate in it may sign others")


def _may_sign(item: x509.Certificate) -> bool:
    """Self-signed certificates count: old roots have no basic constraints, and a peer's own certificate may be trusted."""
    try:
        return item.issuer == item.subject or item.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


def _check_revocations(part: ListenerTls | NamedCertificate, old: Files, new: Files, now: float) -> None:
    """Each list must be in force and signed by its authority, and none may be missing: without it every client of its authority is refused."""
    authorities = [] if part.client_ca is None else _certificates(part.client_ca, new[part.client_ca])
    for path in part.crl:
        lists = _lists(path, new[path])
        if not lists:
            raise RefusedError(path, "holds no revocation list in PEM form")
        ends = [facts.ends for facts in describe_revocations(new[path])]
        if min(ends) <= now:
            raise RefusedError(path, f"has a revocation list that ended on {_day(min(ends))}")
        if any(item.last_update_utc.timestamp() > now for item in lists):
            raise RefusedError(path, "has a revocation list that is not in force yet")
        for item in lists:
            makers = [authority for authority in authorities if authority.subject == item.issuer]
            if makers and not any(_signed(item, maker) for maker in makers):
                raise RefusedError(path, f"has a revocation list of {item.issuer.rfc4514_string()} that this authority did not sign")
    _judge_lost_lists(part, old, new, authorities)


def _judge_lost_lists(part: ListenerTls | NamedCertificate, old: Files, new: Files, authorities: list[x509.Certificate]) -> None:
    left: dict[x509.Name, datetime.datetime] = {}
    for path in part.crl:
        for item in _lists(path, new[path]):
            left[item.issuer] = max(left.get(item.issuer, item.last_update_utc), item.last_update_utc)
    gone = set() if part.client_ca is None else {item.subject for item in _certificates(part.client_ca, old[part.client_ca])}
    gone -= {item.subject for item in authorities}
    for path in part.crl:
        for item in _lists(path, old[path]):
            maker = item.issuer.rfc4514_string()
            if item.issuer not in left and item.issuer not in gone:
                raise RefusedError(path, f"lacks the revocation list of {maker}, which the one in force has")
            if item.issuer in left and left[item.issuer] < item.last_update_utc:
                raise RefusedError(
                    path, f"has a revocation list of {maker} that is older than the one in force: whom that revoked would come in again"
                )


def _lists(path: str, pem: bytes) -> list[x509.CertificateRevocationList]:
    try:
        return revocations(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise RefusedError(path, "holds a revocation list that is broken") from None


def _signed(item: x509.CertificateRevocationList, maker: x509.Certificate) -> bool:
    try:
        return item.is_signature_valid(maker.public_key())  # type: ignore[arg-type]
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False


def _try(section: Tls, new: Files, chains: list[list[x509.Certificate]]) -> None:
    file = section.certificate or (section.ca if isinstance(section, UpstreamTls) else None) or ""
    anchors = [chain[-1].public_bytes(Encoding.DER) for chain in chains]
    try:
        if isinstance(section, ListenerTls):
            store = server_store(section, new)
            contexts = [store.default, *(store.context(item.names[0].lower().rstrip(".")) for item in section.certificates)]
            for context, anchor in zip(contexts, anchors, strict=True):
                try_as_server(context, anchor)
        else:
            try_as_client(upstream_context(section, new), anchors[0] if anchors else None)
    except ConfigError as error:
        raise RefusedError(file, f"is refused by OpenSSL: {error}") from error
    except TrialError as error:
        raise RefusedError(file, f"failed in a test handshake: {error}") from error
