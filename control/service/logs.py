"""LogService."""

from typing import Any, Final

from framegate.control.service.interceptor import Context, note
from framegate.control.service.validate import Violations
from framegate.control.status import LogStatus
from framegate.control.steering.rows import LogRows
from framegate.control.v1 import log_service_pb2 as pb2
from framegate.control.v1.log_service_pb2_grpc import LogServiceServicer
from framegate.proxy.config.log import LEVELS, LogLevel

__all__ = ["Logs"]

_LEVELS: Final[dict[int, LogLevel]] = {pb2.Log.Level.Value(f"LEVEL_{level.upper()}"): level for level in LEVELS}


class Logs(LogServiceServicer):
    """Shows and changes which rows are written."""

    def __init__(self, rows: LogRows) -> None:
        self._rows = rows

    async def GetLog(self, request: pb2.GetLogRequest, context: Context) -> pb2.GetLogResponse:
        return pb2.GetLogResponse(log=_message(self._rows.status()))

    async def UpdateLog(self, request: pb2.UpdateLogRequest, context: Context) -> pb2.UpdateLogResponse:
        """Change the level, and silence events or have them written again."""
        violations = Violations()
        if request.level and request.level not in _LEVELS:
            violations.add("level", f"there is no value {request.level}")
        if not request.level and not request.events:
            violations.add("level", "is required, or events: there is nothing to change")
        violations.check()
        note(before=_noted(self._rows.status()))
        after = self._rows.change(_LEVELS.get(request.level), dict(request.events))
        note(after=_noted(after))
        return pb2.UpdateLogResponse(log=_message(after))


def _noted(status: LogStatus) -> dict[str, Any]:
    return {"level": status.level, "silenced_events": list(status.silenced)}


def _message(status: LogStatus) -> pb2.Log:
    return pb2.Log(
        level=pb2.Log.Level.Value(f"LEVEL_{status.level.upper()}"),
        silenced_events=status.silenced,
        dropped_row_count=status.dropped,
        format=pb2.Log.Format.Value(f"FORMAT_{status.format.upper()}"),
    )
