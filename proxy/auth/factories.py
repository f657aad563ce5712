"""Makes the authenticators that the settings of a listener or an upstream ask for, without SASL.

Modules that only some settings need are imported late, to keep a processor small.
"""

from typing import TYPE_CHECKING

from framegate.proxy.config.model import ListenerConfig, UpstreamConfig
from framegate.proxy.network.authenticator import AnonymousAuthenticators, AuthenticatorFactory, CertificateAuthenticators

if TYPE_CHECKING:
    from framegate.proxy.auth.allowed_principals import AllowedPrincipals


def of_clients(listener: ListenerConfig) -> AuthenticatorFactory:
    """The authenticators for the clients of a listener without SASL. Raises RuleError: its rules cannot be read."""
    tls, principal = listener.tls, listener.principal
    factory: AuthenticatorFactory = AnonymousAuthenticators()
    if tls is not None and tls.client_auth != "none":
        from framegate.proxy.auth.certificates import MappedAuthenticators
        from framegate.proxy.auth.mapping_rules import MappingRules

        factory = MappedAuthenticators(MappingRules(",".join(principal.rules)), principal.from_)
    allowed_principals = allowed_principals_of(listener)
    if allowed_principals is not None:
        from framegate.proxy.auth.allowed_principals import AllowedPrincipalsAuthenticators

        factory = AllowedPrincipalsAuthenticators(allowed_principals, factory)
    return factory


def allowed_principals_of(listener: ListenerConfig) -> "AllowedPrincipals | None":
    """The allowed principals of a listener; None: all. Raises RuleError if a pattern cannot be read."""
    if not listener.allowed_principals:
        return None
    from framegate.proxy.auth.allowed_principals import AllowedPrincipals

    return AllowedPrincipals(listener.allowed_principals)


def of_upstream(upstream: UpstreamConfig) -> AuthenticatorFactory:
    """The authenticators for connections to an upstream, in addition to TLS's verification."""
    factory: AuthenticatorFactory = CertificateAuthenticators()
    if upstream.tls is not None and upstream.tls.pins:
        from framegate.proxy.auth.certificates import PinnedAuthenticators

        factory = PinnedAuthenticators(upstream.tls.pins, factory)
    return factory
