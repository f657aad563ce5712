"""Which authenticators the settings ask for: of a listener's clients, and of the connections to an upstream.

What only some settings need is loaded for them alone: a processor is small, and most ask for nothing.
"""

from typing import TYPE_CHECKING

from proxy.config.model import ListenerConfig, UpstreamConfig
from proxy.network.authenticator import AnonymousAuthenticators, AuthenticatorFactory, CertificateAuthenticators

if TYPE_CHECKING:
    from proxy.auth.admission import Admission

__all__ = ["admission_of", "of_clients", "of_upstream"]


def of_clients(listener: ListenerConfig, sasl: AuthenticatorFactory | None = None) -> AuthenticatorFactory:
    """Who the clients of a listener are, and whether they may come in.

    Args:
        sasl: what asks them, and judges whether they may come in; None: their certificates say it.

    Raises:
        RuleError: its rules cannot be read.
    """
    if sasl is not None:
        return sasl
    tls, principal = listener.tls, listener.principal
    factory: AuthenticatorFactory = AnonymousAuthenticators()
    if tls is not None and tls.client_auth != "none":
        from proxy.auth.certificates import MappedAuthenticators
        from proxy.auth.mapping_rules import MappingRules

        factory = MappedAuthenticators(MappingRules(",".join(principal.rules)), principal.from_)
    admission = admission_of(listener)
    if admission is not None:
        from proxy.auth.admission import AdmittingAuthenticators

        factory = AdmittingAuthenticators(admission, factory)
    return factory


def admission_of(listener: ListenerConfig) -> "Admission | None":
    """Who may come in, of those who are known; None: everybody.

    Raises:
        RuleError: a pattern cannot be read.
    """
    if not listener.allowed_principals:
        return None
    from proxy.auth.admission import Admission

    return Admission(listener.allowed_principals)


def of_upstream(upstream: UpstreamConfig) -> AuthenticatorFactory:
    """Who an upstream must be, beside what its TLS verifies."""
    factory: AuthenticatorFactory = CertificateAuthenticators()
    if upstream.tls is not None and upstream.tls.pins:
        from proxy.auth.certificate_pins import PinnedAuthenticators

        factory = PinnedAuthenticators(upstream.tls.pins, factory)
    return factory
