"""Pages of lists that lie in memory."""

import base64
import binascii
from collections.abc import Sequence
from typing import TypeVar

from framegate.control.bounds import rows_per_page
from framegate.control.errors import InvalidArgumentError, Violation

__all__ = ["page"]

T = TypeVar("T")


def page(items: Sequence[tuple[str, T]], asked: int, token: str) -> tuple[list[T], str]:
    """One page of (key, item) pairs in an order of their own.

    The token names the last key of the page before, so that items which come and go between two pages move nothing else.

    Args:
        items: with unique keys.
        asked: ``page_size`` of the request.
        token: ``page_token`` of the request.

    Returns:
        The page and the token of the next one, empty after the last.

    Raises:
        InvalidArgumentError: a bad size, or a token that is not ours or whose item is gone.
    """
    size = rows_per_page(asked)
    start = 0
    if token:
        last = _decode(token)
        start = next((index + 1 for index, (key, _) in enumerate(items) if key == last), -1)
        if start < 0:
            raise _bad_token()
    chosen = items[start : start + size]
    more = start + size < len(items)
    return [item for _, item in chosen], _encode(chosen[-1][0]) if more else ""


def _encode(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _decode(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except (binascii.Error, ValueError) as error:
        raise _bad_token() from error


def _bad_token() -> InvalidArgumentError:
    return InvalidArgumentError([Violation("page_token", "is not a next_page_token of this list, or too old; begin again without one")])
