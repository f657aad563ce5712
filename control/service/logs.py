"""LogService."""

from typing import Final

from framegate.control.service.interceptor import Context
from framegate.control.service.update import Resource, fill, update
from framegate.control.status import LogStatus
from framegate.control.steering.rows import LogRows, log_etag
from framegate.control.v1 import log_service_pb2 as pb2
from framegate.control.v1.log_service_pb2_grpc import LogServiceServicer

LOG: Final = Resource(pb2.Log, LogStatus, "log", fixed=("format",))


class Logs(LogServiceServicer):
    """Shows and changes which rows are written."""

    def __init__(self, rows: LogRows) -> None:
        self._rows = rows

    async def GetLog(self, request: pb2.GetLogRequest, context: Context) -> pb2.GetLogResponse:
        return pb2.GetLogResponse(log=_message(self._rows.status()))

    async def UpdateLog(self, request: pb2.UpdateLogRequest, context: Context) -> pb2.UpdateLogResponse:
        return pb2.UpdateLogResponse(log=_message(await update(request, LOG, self._rows.change)))


def _message(status: LogStatus) -> pb2.Log:
    return fill(pb2.Log(dropped_row_count=status.dropped, etag=log_etag(status)), status)
