"""How one rate is divided among processors, by what is asked of it in each.

Where nobody waits a processor gets what it uses and a little more; what is left goes to those where somebody does, in proportion to how many: so each
connection that wants more than it gets has the same, wherever it is. Where nobody waits anywhere the rest is divided equally.
"""

from collections.abc import Mapping
from typing import Final

from control.fleet.demands import Demand

__all__ = ["WHOLE", "divided"]

WHOLE: Final = 1_000_000
"""Millionths of a rate."""
HEADROOM: Final = 1.03
ONE: Final = 1000


def divided(whole: int, asked: Mapping[int, Demand]) -> dict[int, int]:
    """The parts of the processors; their sum is at most ``whole``, and less by no more than what rounding takes.

    Args:
        whole: millionths that may be given.
        asked: by processor, of at least one.
    """
    parts: dict[int, int] = {}
    left = whole
    open_ones = dict(asked)
    while open_ones:
        shares = sum(_weight(each) for each in open_ones.values())
        content = {name: each for name, each in open_ones.items() if not each.waiting and _enough(each) * shares <= left * _weight(each)}
        if not content:
            parts.update({name: left * _weight(each) // shares for name, each in open_ones.items()})
            return {name: parts[name] for name in asked}
        for name, each in content.items():
            parts[name] = _enough(each)
            left -= parts[name]
            del open_ones[name]
    return {name: parts[name] + left // len(parts) for name in asked}


def _enough(asked: Demand) -> int:
    return int(asked.used * HEADROOM)


def _weight(asked: Demand) -> int:
    return max(asked.wanting, ONE)
