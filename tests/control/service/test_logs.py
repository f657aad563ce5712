"""LogService over a real socket."""

from framegate.control.v1 import log_service_pb2 as pb2
from tests.control.service.served import failure_of, served
from tests.fakes.serving import Serving


def update(**fields: object) -> pb2.UpdateLogRequest:
    return pb2.UpdateLogRequest(log=pb2.Log(**fields))  # type: ignore[arg-type]


@served()
async def test_what_is_written_is_got_and_changed_and_the_audit_row_says_from_what_to_what(at: Serving) -> None:
    first = (await at.api.GetLog(pb2.GetLogRequest())).log
    assert (first.level, list(first.silenced_events), first.dropped_row_count, first.format) == (pb2.Log.LEVEL_INFO, [], 7, pb2.Log.FORMAT_JSON)
    updated = (await at.api.UpdateLog(update(level=pb2.Log.LEVEL_WARNING, silenced_events=["closed", "access", "closed"], etag=first.etag))).log
    assert (updated.level, list(updated.silenced_events)) == (pb2.Log.LEVEL_WARNING, ["access", "closed"])
    assert (await at.api.GetLog(pb2.GetLogRequest())).log == updated
    updated = (await at.api.UpdateLog(update(silenced_events=["access"]))).log
    assert (updated.level, list(updated.silenced_events)) == (pb2.Log.LEVEL_WARNING, ["access"])
    first_row, second_row = at.plane.audits
    before, after = {"level": "info", "silenced_events": []}, {"level": "warning", "silenced_events": ["access", "closed"]}
    assert (first_row["before"], first_row["after"]) == (before, after)
    assert second_row["after"] == {"silenced_events": ["access"]}


@served()
async def test_a_wrong_update_of_the_log_is_refused_with_a_reason_and_changes_nothing(at: Serving) -> None:
    for request, text in (
        (update(level=9), "log.level: must be one of"),
        (update(silenced_events=["clsoed"]), "log.silenced_events: there is no event 'clsoed'"),
        (update(level=pb2.Log.LEVEL_ERROR, silenced_events=["audit"]), "audit are always written"),
    ):
        assert text in str((await failure_of(at.api.UpdateLog(request))).details())
    assert (await at.api.GetLog(pb2.GetLogRequest())).log.level == pb2.Log.LEVEL_INFO
    assert [row["result"] for row in at.plane.audits] == ["INVALID_ARGUMENT"] * 3
