"""The callers of the API over TCP, by what their certificates prove. Loaded only where ``admin.tcp`` is configured."""

import _ssl
import hashlib
import ssl
import sys

from framegate.control.events import Row
from framegate.control.service.peers import NO_ROLE, ROLES, Peer
from framegate.proxy.auth.allowed_principals import AllowedPrincipals
from framegate.proxy.auth.certificates import MappedAuthenticators
from framegate.proxy.auth.mapping_rules import MappingRules
from framegate.proxy.config.model import AdminTcp
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.certificate import subject_of
from framegate.proxy.network.transport import Identity


class CertificatePeers:
    """Finds the principal of a certificate, as listeners do, and its role."""

    def __init__(self, config: AdminTcp) -> None:
        """Raises RuleError if rules cannot be read."""
        self._principals = MappedAuthenticators(MappingRules(",".join(config.principal.rules)), config.principal.from_)
        self._allowed = {role: AllowedPrincipals(getattr(config, name)) for name, role in ROLES.items()}

    def peer(self, tls: ssl.SSLObject, address: str) -> Peer:
        """The caller at the other end of a connection whose certificate is verified."""
        certificate = tls.getpeercert(binary_form=True)
        assert certificate is not None, "a client without a certificate has no connection"
        ends_s = ssl.cert_time_to_seconds(str((tls.getpeercert() or {})["notAfter"]))
        subject = subject_of(certificate)
        try:
            principal = self._principals.make(Identity(subject=subject, certificate=certificate)).principal
            role = next((role for role, allowed in self._allowed.items() if allowed.allows(principal)), NO_ROLE)
        except AuthenticationError:
            principal, role = subject, NO_ROLE
        fields: Row = {"who": principal, "certificate": hashlib.sha256(certificate).hexdigest(), "address": address}
        return Peer(role, fields, local=False, ends_s=ends_s, chain=tuple(_chain(tls)) or (certificate,))


def _chain(tls: ssl.SSLObject) -> list[bytes]:
    if sys.version_info >= (3, 13):
        return tls.get_verified_chain()
    found = tls._sslobj.get_verified_chain()  # type: ignore[attr-defined]  # what later versions do
    return [item.public_bytes(_ssl.ENCODING_DER) for item in found or ()]
