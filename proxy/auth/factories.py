"""Which authenticators the settings ask for: of a listener's clients, and of the connections to an upstream.

What only some settings need is loaded for them alone: a processor is small, and most ask for nothing.
"""

from proxy.config.model import ListenerConfig, UpstreamConfig
from proxy.network.authenticator import AnonymousAuthenticators, AuthenticatorFactory, CertificateAuthenticators

__all__ = ["of_clients", "of_upstream"]


def of_clients(listener: ListenerConfig, sasl: AuthenticatorFactory | None = None) -> AuthenticatorFactory:
    """Who the clients of a listener are, and whether they may come in.

    Args:
        sasl: what asks them; None: their certificates say it.

    Raises:
        RuleError: its rules cannot be read.
    """
    tls, principal = listener.tls, listener.principal
    factory: AuthenticatorFactory = AnonymousAuthenticators()
    if sasl is not None:
        factory = sasl
    elif tls is not None and tls.client_auth != "none":
        from proxy.auth.certificates import MappedAuthenticators
        from proxy.auth.mapping_rules import MappingRules

        factory = MappedAuthenticators(MappingRules(",".join(principal.rules)), principal.from_)
    if listener.allowed_principals:
        from proxy.auth.admission import Admission, AdmittingAuthenticators

        factory = AdmittingAuthenticators(Admission(listener.allowed_principals), factory)
    return factory


def of_upstream(upstream: UpstreamConfig) -> AuthenticatorFactory:
    """Who an upstream must be, beside what its TLS verifies."""
    factory: AuthenticatorFactory = CertificateAuthenticators()
    if upstream.tls is not None and upstream.tls.pins:
        from proxy.auth.certificate_pins import PinnedAuthenticators

        factory = PinnedAuthenticators(upstream.tls.pins, factory)
    return factory
