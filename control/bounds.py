"""Bounds of a single request."""

from typing import Final

from framegate.control.errors import InvalidArgumentError, Violation

__all__ = ["MAX_HOLDERS", "MAX_PAGE_SIZE", "rows_per_page"]

DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1_000
MAX_HOLDERS: Final = 100
"""Of ``Channels.top_holders``."""


def rows_per_page(asked: int) -> int:
    """The size of a page: 0 means the default, and the maximum replaces larger values (AIP-158). Raises InvalidArgumentError below 0."""
    if asked < 0:
        raise InvalidArgumentError([Violation("page_size", f"must be 0 to {MAX_PAGE_SIZE}, not {asked}")])
    return min(asked or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
