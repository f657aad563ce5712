"""What becomes of a handle that raises: a text for the processor, and a row for the log, once a second at most."""

import traceback
from collections.abc import Callable
from typing import Final

from framegate.proxy.handler.activity import Activity
from framegate.proxy.handler.api import Context
from framegate.proxy.relay.handler_wire import error_text
from framegate.proxy.server.rows import HandlerRaisedRow

__all__ = ["Failures"]

EVERY_NS: Final = 1_000_000_000
MOST_TEXT: Final = 16_384
"""Characters of a traceback, of which the end tells most."""


class Failures:
    """Counts failures, and tells of them.

    Args:
        tell: takes a row; called once a second at most.
    """

    def __init__(self, activity: Activity, now: Callable[[], int], tell: Callable[[HandlerRaisedRow], None]) -> None:
        self._activity: Final = activity
        self._now: Final = now
        self._report: Final = tell
        self._next_ns = 0
        self._suppressed = 0

    def raised(self, handler: str, context: Context, error: BaseException) -> bytes:
        """Note a failure; gives the body of its reply."""
        self._activity.failed += 1
        text = traceback.format_exception_only(error)[-1].strip()
        now_ns = self._now()
        if now_ns < self._next_ns:
            self._suppressed += 1
            return error_text(text)
        self._next_ns = now_ns + EVERY_NS
        behind = error.__traceback__.tb_next if error.__traceback__ else None  # the first step is ours
        where = "".join(traceback.format_exception(type(error), error, behind))[-MOST_TEXT:]
        self._report(
            HandlerRaisedRow(
                listener=context.listener,
                handler=handler,
                connection=context.connection,
                error=text[:MOST_TEXT],
                traceback=where,
                suppressed=self._suppressed,
            )
        )
        self._suppressed = 0
        return error_text(text)
