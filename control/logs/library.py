"""What libraries log, as rows."""

import logging
from collections.abc import Callable

from framegate.control.logs.row_log import RowLog

__all__ = ["LibraryRows"]


class LibraryRows(logging.Handler):
    """Turns what libraries log (``logging``: gRPC, OpenTelemetry, our own interceptor) into rows, so that stdout holds one form of line.

    Args:
        on_exception: is called for each record that tells of an exception: a callback that a library called, a call that failed.
    """

    def __init__(self, log: RowLog, on_exception: Callable[[], None] = lambda: None) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._on_exception = on_exception

    def emit(self, record: logging.LogRecord) -> None:
        """One row: the logger's name, its message, and the error's type and text when there is one."""
        error = record.exc_info[1] if record.exc_info else None
        fields = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
        if error is not None:
            self._on_exception()
        try:
            message = record.getMessage()
        except Exception:  # arguments that do not fit the text: theirs, and no reason to fail their call
            message = f"{record.msg} {record.args}"
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self._log.write("library_log", level=level, logger=record.name, message=message, **fields)
