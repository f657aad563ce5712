"""The framings that a configuration may name."""

from typing import Final

from proxy.network.framing import Framing
from proxy.network.int32 import INT32

__all__ = ["FRAMINGS"]

FRAMINGS: Final[dict[str, Framing]] = {framing.name: framing for framing in (INT32,)}
