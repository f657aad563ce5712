"""How one rate is divided among processors, by what is asked of it in each.

Who is not held up gets what it uses and a little more; what is left goes to those that are, in proportion to how many share there: so each
connection that wants more than it gets has the same, wherever it is. One that is not held up may have no more than that, either: asking for more
shows how many share. Where nobody is held up the rest is divided equally.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["WHOLE", "Asked", "divided"]

WHOLE: Final = 1_000_000
"""Millionths of a rate."""
HEADROOM: Final = 1.03
ONE: Final = 1000


class Asked(NamedTuple):
    """Of one processor: tokens a second that passed, as millionths of the rate; and how many would share alike, in thousandths.

    Attributes:
        users: 0 when the rate held nobody up.
        before: what ``users`` was when it did last.
        least: its part comes to no less than this now, or than its share. What another rate holds up may want more than it uses.
    """

    used: int = 0
    users: int = 0
    before: int = ONE
    least: int = 0


def divided(whole: int, asked: Mapping[int, Asked]) -> dict[int, int]:
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
        content = {name: each for name, each in open_ones.items() if not each.users and _enough(each) * shares <= left * _weight(each)}
        if not content:
            parts.update({name: left * _weight(each) // shares for name, each in open_ones.items()})
            return {name: parts[name] for name in asked}
        for name, each in content.items():
            parts[name] = _enough(each)
            left -= parts[name]
            del open_ones[name]
    return {name: parts[name] + left // len(parts) for name in asked}


def _enough(asked: Asked) -> int:
    return max(int(asked.used * HEADROOM), asked.least)


def _weight(asked: Asked) -> int:
    return max(asked.users or asked.before, ONE)
