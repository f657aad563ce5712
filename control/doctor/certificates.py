"""The certificates, keys, authorities and revocation lists that the configuration names.

``control.rotation.validator``, which judges them while framegate runs, decides whether they are good: the key fits, the chain is complete and in
order, nothing has ended or not begun, OpenSSL takes them, a handshake succeeds. This module adds the time that is left, weak keys, names, and where a
chain ends. ``days``, ``ends_soon`` and ``weakness`` also judge the certificates of upstreams.
"""

import functools
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa

from framegate.control.configuration.document import ConfigurationError
from framegate.control.configuration.tls_files import (
    CertificateFacts,
    describe_revocations,
    facts_of,
    identities,
    read_tls_files,
    revocation_lists,
    tls_sections,
)
from framegate.control.configuration.units import counted
from framegate.control.doctor.finding import Finding, judged, unknown
from framegate.control.doctor.surroundings import Surroundings
from framegate.control.rotation.validator import Files, Tls, is_made_by, refusal_of
from framegate.proxy.config.tls import ListenerTls, UpstreamTls

DAY_S: Final = 86_400.0
_SOON_S: Final = 14 * DAY_S
_LEAST_RSA: Final = 2_048
_LEAST_CURVE: Final = 256
_BROKEN: Final = ("md5", "sha1")
_NEW: Final = "put a new one in its place: a running framegate takes it by itself (framegate certificates list)"
_ADVICE: Final = (
    ("is no chain", "write the chain in order: the leaf first, behind each certificate the one that made it"),
    ("is not valid before", "look at the clocks of this machine and of who made it; else wait, or make it anew"),
    ("key", "put certificate and key there together, of the same making"),
    ("handshake", "make one that may be used for TLS by this side (extended key usage), with its whole chain"),
)
_judged = functools.partial(judged, "certificates")


def ends_soon(begins: float, ends: float, now: float) -> bool:
    """Whether less than 14 days and less than a quarter of its life are left: renewal usually comes earlier, also for certificates of a day."""
    return ends - now < min(_SOON_S, (ends - begins) / 4)


def days(ends: float, now: float) -> str:
    """The time left, in words; if it has ended, how long ago."""
    left = ends - now
    if left < 0:
        return f"ended {_long(-left)} ago"
    return f"ends in {_long(left)}"


def _long(seconds: float) -> str:
    return f"{seconds / DAY_S:.0f} days" if seconds >= 2 * DAY_S else counted(round(seconds / 3600), "hour")


def weakness(certificate: x509.Certificate) -> str | None:
    """What is weak about a certificate's key or signature; None when nothing is. The signature of a root on itself is not judged."""
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < _LEAST_RSA:
        return f"its RSA key has {key.key_size} bits, less than {_LEAST_RSA}"
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.key_size < _LEAST_CURVE:
        return f"its key is on the curve {key.curve.name}, of {key.curve.key_size} bits"
    if isinstance(key, dsa.DSAPublicKey):
        return "its key is for DSA, which TLS 1.3 does not know"
    algorithm = certificate.signature_hash_algorithm
    if algorithm is not None and algorithm.name in _BROKEN and certificate.issuer != certificate.subject:
        return f"it is signed with {algorithm.name.upper()}"
    return None


def look(around: Surroundings) -> Iterator[Finding]:
    """Each section of TLS."""
    config = around.config
    if config is None or not tls_sections(config):
        nothing = unknown("certificates", "files", "nothing was looked at, for there is no valid configuration")
        yield nothing if config is None else _judged("files", "nothing here speaks TLS")
        return
    try:
        files = {path: text.encode("latin-1") for path, text in read_tls_files(config).items()}
    except ConfigurationError as error:  # they changed since the configuration was read
        for fault in error.faults:
            yield _judged(fault.key, f"{fault.value} {fault.reason}".strip(), fault="look again, it changed a moment ago; framegate check says more")
        return
    for owner, (key, section) in tls_sections(config).items():
        yield from _section(owner, key, section, files, around.now())


def _section(owner: str, key: str, section: Tls, files: Files, now: float) -> Iterator[Finding]:
    refusal = refusal_of(section, files, files, now)
    subject = f"{owner} ({key})"
    if refusal is not None:
        yield _judged(subject, str(refusal), fault=next((advice for word, advice in _ADVICE if word in refusal.reason), _NEW))
    else:
        yield _judged(subject, "key and certificate match, no certificate has expired, a test handshake succeeded")
    known = _known(section, files)
    for _, path in identities(section):
        yield from _chain(subject, path, files[path], known, now, listens=isinstance(section, ListenerTls))
    for path in sorted(set(_authorities(section))):
        yield from _ends(subject, path, "authority", map(facts_of, _certificates(files[path])), now)
    for path in revocation_lists(section):
        yield from _ends(subject, path, "revocation list", describe_revocations(files[path]), now)


def _authorities(section: Tls) -> list[str]:
    named = [section.ca] if isinstance(section, UpstreamTls) else [section.client_ca, *(item.client_ca for item in section.certificates)]
    return [path for path in named if path]


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []  # the validator has reported it


def _known(section: Tls, files: Files) -> list[x509.Certificate]:
    """Authorities that this machine knows: those of the section, a ``ca.crt`` beside the chain (as of cert-manager), the system's."""
    found = [item for path in _authorities(section) for item in _certificates(files[path])]
    for folder in {Path(path).parent for _, path in identities(section)}:
        beside = folder / "ca.crt"
        if beside.is_file() and beside.stat().st_size < (1 << 20):
            found += _certificates(beside.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    makers = {chain[-1].issuer.public_bytes() for _, path in identities(section) if (chain := _certificates(files[path]))}
    for der in context.get_ca_certs(binary_form=True):
        if any(maker in der for maker in makers):  # others are not needed, and some of the system's can be read by OpenSSL only
            found.append(x509.load_der_x509_certificate(der))
    return found


def _chain(subject: str, path: str, pem: bytes, known: list[x509.Certificate], now: float, *, listens: bool) -> Iterator[Finding]:
    chain = _certificates(pem)
    if not chain:
        return
    facts = facts_of(chain[0])
    yield from _ends(subject, path, "certificate", [facts], now)
    weak = next((f"certificate {number}: {words}" for number, item in enumerate(chain, 1) if (words := weakness(item)) is not None), None)
    if weak is not None:
        yield _judged(subject, f"{path} is weak: {weak}", warning="make it anew with an ECDSA key on P-256, or RSA of 2048 bits, and SHA-256")
    if listens:
        yield _names(subject, path, facts)
    yield _end_of_chain(subject, path, chain, known)


def _ends(subject: str, path: str, what: str, facts: Iterable[CertificateFacts], now: float) -> Iterator[Finding]:
    """When the first of them ends. The validator reports what has ended already, but not an authority beside which another is valid."""
    found = sorted(facts, key=lambda item: item.ends)
    if not found or (found[0].ends <= now and what != "authority"):
        return
    first = found[0]
    words = f"{path}: the {what} {first.subject or first.issuer} {days(first.ends, now)}"
    figures = {"days": round((first.ends - now) / DAY_S, 2)}
    yield _judged(subject, words, figures, warning=_NEW if ends_soon(first.begins, first.ends, now) else None)


def _names(subject: str, path: str, facts: CertificateFacts) -> Finding:
    names = [name for name in facts.names if name.startswith(("DNS:", "IP:"))]
    if names:
        return _judged(subject, f"{path} is for {', '.join(names)}")
    advice = "make it anew with the names that clients connect to as alternative names: the common name is looked at by nobody"
    return _judged(subject, f"{path} has no DNS name or address: clients that verify it refuse it", warning=advice)


def _end_of_chain(subject: str, path: str, chain: list[x509.Certificate], known: list[x509.Certificate]) -> Finding:
    last, figures = chain[-1], {"certificates": len(chain)}
    maker = last.issuer.rfc4514_string()
    if last.issuer == last.subject:
        return _judged(subject, f"the chain in {path} ends at its root, {maker}", figures)
    if any(is_made_by(last, item) for item in known):
        return _judged(subject, f"the chain in {path} ends below {maker}, an authority known here", figures)
    words = f"the chain in {path} ends below {maker}, which no file here and not the system knows"
    advice = f"peers must trust {maker} itself; if it is an intermediate authority, write its certificate at the end of {path}"
    return unknown("certificates", subject, words, advice, figures)
