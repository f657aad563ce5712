"""How much a channel asks its socket for: more when reads fill, less when they stay nearly empty."""

from typing import Final

from mypy_extensions import i64

__all__ = ["FIRST_READ", "MAX_READ", "MIN_READ", "adapted"]

MIN_READ: Final = 448  # with the head of a ``bytes`` still a small block of the interpreter's own, which costs a tenth of what malloc takes
MAX_READ: Final = 262144  # 64 KiB frames cost 0.92 (plain) and 0.96 (TLS) of what they do with 131072, in one run beside HAProxy
FIRST_READ: Final = 8 * MIN_READ


def adapted(suits: i64, size: i64, length: i64) -> i64:
    """What suits the traffic after a read that gave ``length`` of ``size`` bytes: a large buffer for few bytes costs more than reading them.

    Args:
        suits: what suited it before; ``size`` may have been another, for reasons of its own.
    """
    if length > size - (size >> 2):
        return min(max(size << 2, suits), MAX_READ)
    if length < size >> 2 and size == suits:
        return max(size >> 1, MIN_READ)
    return suits
