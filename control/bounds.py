"""Bounds of a single request, and the names of its fields."""

from typing import Final

from framegate.control.errors import InvalidArgumentError, Violation

DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1_000
MAX_HOLDERS: Final = 100  # of ``Channels.top_holders``
FIELD_NAMES: Final = {
    "max_connection_count": "connections",
    "connections_per_second": "connection_rate",
    "request_bytes_per_second": "request_bytes_rate",
    "response_bytes_per_second": "response_bytes_rate",
    "request_frames_per_second": "request_frames_rate",
    "response_frames_per_second": "response_frames_rate",
    "max_receive_size_bytes": "max_receive_size",
    "min_size_bytes": "min_size",
    "max_size_bytes": "max_size",
    "size_bytes": "size",
    "expire_time": "expires_ns",
    "silenced_events": "silenced",
    "processor_count": "processors",
}  # the names of the model's fields by those of the API's, where they differ


def rows_per_page(asked: int) -> int:
    """The size of a page: 0 means the default, and the maximum replaces larger values (AIP-158). Raises InvalidArgumentError below 0."""
    if asked < 0:
        raise InvalidArgumentError([Violation("page_size", f"must be 0 to {MAX_PAGE_SIZE}, not {asked}")])
    return min(asked or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
