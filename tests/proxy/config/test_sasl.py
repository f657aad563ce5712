"""The keys of SASL say what the modules take that they are given to."""

import typing

from framegate.control.identity.jwks import ALGORITHMS
from framegate.control.identity.tokens import TokenRules
from framegate.proxy.auth.server import MECHANISMS
from framegate.proxy.config.sasl import ListenerSasl, Mechanism, TokenAlgorithm, TokenConfig
from framegate.proxy.network.frame_exchange import MAX_FRAME


def test_the_words_are_those_of_the_modules_that_take_them() -> None:
    assert set(typing.get_args(Mechanism)) == set(MECHANISMS)
    assert set(typing.get_args(TokenAlgorithm)) == set(ALGORITHMS)


def test_the_defaults_are_theirs_too() -> None:
    rules, config = TokenRules("i", "a"), TokenConfig(jwks="j", issuer="i", audience="a")
    assert (config.algorithms, config.scopes, config.principal_claim) == (rules.algorithms, rules.scopes, rules.principal_claim)
    assert (config.scope_claim, config.clock_skew_ms) == (rules.scope_claim, rules.clock_skew_s * 1000)
    assert ListenerSasl(mechanisms=()).max_frame == MAX_FRAME
