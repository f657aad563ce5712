"""LogService over a real socket."""

import grpc
import pytest

from framegate.control.v1 import log_service_pb2 as pb2
from framegate.control.v1.log_service_pb2_grpc import LogServiceStub
from tests.control.service.served import failure_of, served
from tests.fakes.serving import Serving


@served()
async def test_what_is_written_is_got_and_changed_and_the_audit_row_says_from_what_to_what(at: Serving) -> None:
    stub = LogServiceStub(at.channel)
    first = (await stub.GetLog(pb2.GetLogRequest())).log
    assert (first.level, list(first.silenced_events), first.dropped_row_count, first.format) == (pb2.Log.LEVEL_INFO, [], 7, pb2.Log.FORMAT_JSON)
    request = pb2.UpdateLogRequest(level=pb2.Log.LEVEL_WARNING, events={"closed": False, "access": False})
    updated = (await stub.UpdateLog(request)).log
    assert (updated.level, list(updated.silenced_events)) == (pb2.Log.LEVEL_WARNING, ["access", "closed"])
    assert (await stub.GetLog(pb2.GetLogRequest())).log == updated
    updated = (await stub.UpdateLog(pb2.UpdateLogRequest(events={"closed": True}))).log
    assert (updated.level, list(updated.silenced_events)) == (pb2.Log.LEVEL_WARNING, ["access"])
    first_row, second_row = at.plane.audits
    assert (first_row["before"], first_row["after"]) == (
        {"level": "info", "silenced_events": []},
        {"level": "warning", "silenced_events": ["access", "closed"]},
    )
    assert second_row["after"] == {"level": "warning", "silenced_events": ["access"]}


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (pb2.UpdateLogRequest(), "there is nothing to change"),
        (pb2.UpdateLogRequest(level=9), "there is no value 9"),  # type: ignore[arg-type]
        (pb2.UpdateLogRequest(events={"clsoed": False}), "there is no event 'clsoed'"),
        (pb2.UpdateLogRequest(level=pb2.Log.LEVEL_ERROR, events={"audit": False}), "audit are always written"),
    ],
)
@served()
async def test_a_wrong_update_of_the_log_is_refused_with_a_reason_and_changes_nothing(at: Serving, request_: pb2.UpdateLogRequest, text: str) -> None:
    stub = LogServiceStub(at.channel)
    failure = await failure_of(stub.UpdateLog(request_))
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in str(failure.details())
    assert (await stub.GetLog(pb2.GetLogRequest())).log.level == pb2.Log.LEVEL_INFO
    (row,) = at.plane.audits
    assert row["result"] == "INVALID_ARGUMENT"
