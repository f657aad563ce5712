"""Our logins to an upstream, as configured."""

from typing import Final

from framegate.proxy.auth.auth_requests import CredentialSource
from framegate.proxy.auth.client import Count, SaslClientAuthenticators, SaslClientSettings
from framegate.proxy.auth.mapping_rules import MappingRules
from framegate.proxy.config.sasl import Login as LoginConfig
from framegate.proxy.config.sasl import UpstreamSasl, logins_of
from framegate.proxy.relay.login import Login, Logins

_RULE: Final = "RULE:"


class UpstreamLogins(Logins):
    """The logins to one upstream, shared by the listeners that use it. Raises RuleError: a rule for principals cannot be read (control has validated
    it).
    """

    def __init__(self, upstream: str, sasl: UpstreamSasl, source: CredentialSource, count: Count = lambda mechanism, error: None) -> None:
        self._rows: Final = [_Row(item, source, count) for item in logins_of(upstream, sasl)]

    def choose(self, principal: str) -> Login | None:
        return next((row.login for row in self._rows if row.is_for(principal)), None)


class _Row:
    """One login, and the principals that use it."""

    def __init__(self, config: LoginConfig, source: CredentialSource, count: Count) -> None:
        settings = SaslClientSettings(config.mechanism, config.user, config.credential)
        self.login: Final = Login(SaslClientAuthenticators(settings, source, count=count))
        self._everybody: Final = not config.principals
        self._names: Final = frozenset(item for item in config.principals if not item.startswith(_RULE))
        self._rules: Final = [MappingRules(item) for item in config.principals if item.startswith(_RULE)]

    def is_for(self, principal: str) -> bool:
        return self._everybody or principal in self._names or any(rule.apply(principal) is not None for rule in self._rules)
