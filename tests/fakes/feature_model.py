"""Features of a connection and their values, which combinations of them a configuration allows, and sets of combinations that cover all pairs."""

import itertools
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

VALUES: Final[dict[str, tuple[str, ...]]] = {
    "protocol": ("framed", "kafka"),
    "brokers": ("no", "ports", "hosts"),
    "rules": ("no", "deny"),
    "client_framing": ("int32", "varint", "header"),
    "upstream_framing": ("int32", "varint", "int32_inclusive"),
    "client_tls": ("no", "yes", "mutual"),
    "upstream_tls": ("no", "yes"),
    "client_proxy": ("no", "v1", "v2"),
    "upstream_proxy": ("no", "v1", "v2"),
    "sasl": ("no", "PLAIN"),
    "upstream_sasl": ("no", "PLAIN"),
    "handler": ("no", "passes", "changes", "answers"),
    "requests": ("whole", "cut_through"),
    "responses": ("cut_through", "whole"),
    "quota": ("no", "bytes", "frames", "address", "rule"),
    "tap": ("no", "full", "lengths", "sampled", "mute"),
    "sizes": ("small", "mixed", "large"),
    "window": ("1", "16"),
    "reader": ("prompt", "late"),
    "action": ("no", "mute", "throttle", "limit", "login", "rule"),
    "ending": (
        "client_half_closes",
        "client_closes",
        "client_resets",
        "upstream_closes",
        "frame_too_large",
        "negative_size",
        "within_a_frame",
        "sasl_frame",
        "large_sasl_frame",
        "admin",
        "max_age",
        "drain",
    ),
}  # the first value of each is the default


@dataclass(frozen=True, slots=True)
class Combination:
    """A value of ``VALUES`` for each feature of one connection."""

    protocol: str
    brokers: str
    rules: str
    client_framing: str
    upstream_framing: str
    client_tls: str
    upstream_tls: str
    client_proxy: str
    upstream_proxy: str
    sasl: str
    upstream_sasl: str
    handler: str
    requests: str
    responses: str
    quota: str
    tap: str
    sizes: str
    window: str
    reader: str
    action: str
    ending: str

    @property
    def possible(self) -> bool:
        """Whether the configuration allows it, and the scenario makes sense."""
        kafka = self.protocol == "kafka"
        refused = (
            kafka and (self.client_framing, self.upstream_framing) != ("int32", "int32"),
            not kafka and "PLAIN" in (self.sasl, self.upstream_sasl),
            (self.brokers, self.rules) != ("no", "no") and (not kafka or self.handler != "no"),
            self.brokers != "no" and self.upstream_proxy != "no",
            self.brokers == "hosts" and self.client_tls == "no",
            self.rules != "no" and self.requests != "whole",
            self.handler != "no" and (self.requests, self.responses) != ("whole", "whole"),
            self.handler == "answers" and (self.upstream_framing, self.upstream_tls, self.upstream_sasl) != ("int32", "no", "no"),
            self.handler == "answers" and (self.ending == "upstream_closes" or self.upstream_proxy != "no"),
            self.sasl == "no" and (self.action == "login" or self.ending in ("sasl_frame", "large_sasl_frame")),
            self.handler != "no" and self.action == "login",  # no client authenticates again behind a handler
            self.tap == "no" and self.action == "rule",
            self.window == "1" and self.reader == "late",
            self.ending == "negative_size" and self.client_framing != "int32",
        )
        return not any(refused)

    def __str__(self) -> str:
        changed = {name: value for name, value in asdict(self).items() if value != VALUES[name][0]}
        return " ".join(f"{name}={value}" for name, value in changed.items()) or "defaults"


Pair = tuple[tuple[str, Any], ...]


def pairs_of(combination: Combination) -> frozenset[Pair]:
    """The pairs of features with their values."""
    values = [(field.name, getattr(combination, field.name)) for field in fields(combination)]
    return frozenset(itertools.combinations(values, 2))


def _random(rng: random.Random, fixed: Iterable[tuple[str, str]] = ()) -> Combination | None:
    """A possible combination that has the fixed values; None: none was found."""
    values = VALUES | {name: (value,) for name, value in fixed}
    for attempt in range(2000):  # later ones have more defaults, which go with most
        found = Combination(**{name: of[0] if rng.random() < attempt / 2000 else rng.choice(of) for name, of in values.items()})
        if found.possible:
            return found
    return None


def possible_pairs(rng: random.Random) -> frozenset[Pair]:
    """Every pair of two features' values that some combination has."""
    found: set[Pair] = set()
    for one, other in itertools.combinations(VALUES, 2):
        for first, second in itertools.product(VALUES[one], VALUES[other]):
            pair = ((one, first), (other, second))
            if pair not in found and (combination := _random(rng, pair)) is not None:
                found |= pairs_of(combination)
    return frozenset(found)


def covering(rng: random.Random, wanted: frozenset[Pair]) -> list[Combination]:
    left, found = set(wanted), []
    while left:
        start = min(left)
        candidates = [made for _ in range(20) if (made := _random(rng, start)) is not None]
        best = max(candidates, key=lambda item: len(left & pairs_of(item)))
        found.append(best)
        left -= pairs_of(best)
    return found
