"""Principals of certificates: a name of the certificate, as the listener's rules map it."""

from typing import Final

from framegate.proxy.auth.certificate_names import alternative_names
from framegate.proxy.auth.mapping_rules import MappingRules
from framegate.proxy.config.tls import NameSource
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.network.authenticator import ANONYMOUS, AuthenticatorFactory, HandshakeAuthenticator
from framegate.proxy.network.transport import Identity

__all__ = ["MappedAuthenticators"]

_NOBODY: Final = HandshakeAuthenticator(ANONYMOUS)


class MappedAuthenticators(AuthenticatorFactory):
    """The first name of the certificate that a rule matches; ``ANONYMOUS`` without a certificate.

    A certificate that has no such name, or none that a rule matches, is refused: who shows one does not mean to be nobody.
    """

    def __init__(self, rules: MappingRules, source: NameSource = "subject") -> None:
        """Args:
        rules: from the name to the principal.
        source: which name: the subject's distinguished name, or the alternative names of one kind.
        """
        self._rules: Final = rules
        self._source: Final[NameSource] = source

    def make(self, identity: Identity) -> HandshakeAuthenticator:
        names = self._names(identity)
        if names is None:
            return _NOBODY
        for name in names:
            principal = self._rules.apply(name)
            if principal:
                return HandshakeAuthenticator(principal)
            if principal is not None:
                raise AuthenticationError(f"the rules map the {self._source} name {name!r} to an empty one")
        if not names:
            raise AuthenticationError(f"the certificate has no {self._source} name")
        raise AuthenticationError(f"no rule matches the {self._source} name {', '.join(map(repr, names))}")

    def _names(self, identity: Identity) -> list[str] | None:
        if self._source == "subject":
            if identity.subject is None:
                return None
            return [identity.subject] if identity.subject else []
        return None if identity.certificate is None else alternative_names(identity.certificate, self._source)
