"""The catalog of all events: meaning, levels and fields of their rows. A new event must be added here.

Fields are declared with the types of JSON that ``proxy.server.schema`` accepts; a field that is not in every row is ``NotRequired``. Every row has
``time``, ``level`` and ``event``, and may have ``rows_dropped`` (the number of rows that were dropped before it), ``trace_id`` and ``span_id`` (of
its span).
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, NotRequired, get_type_hints

from framegate.proxy.config.log import LogLevel
from framegate.proxy.server.protocol import EVENTS as PROCESSORS
from framegate.proxy.server.rows import LEFT_OUT, RESTORED, AccessRow, ClosedRow, OpenedRow

COMMON: Final[Mapping[str, Any]] = {
    "time": str,
    "level": Literal["debug", "info", "warning", "error"],
    "event": str,
    "rows_dropped": NotRequired[int],
    "trace_id": NotRequired[str],
    "span_id": NotRequired[str],
}


class Event(NamedTuple):
    """The rows of one event."""

    says: str  # what has happened, as a sentence
    levels: tuple[LogLevel, ...]  # the possible levels of its rows
    fields: Mapping[str, Any]  # their types, without ``COMMON``


_INFO: Final[tuple[LogLevel, ...]] = ("info",)
_WARNING: Final[tuple[LogLevel, ...]] = ("warning",)
_ERROR: Final[tuple[LogLevel, ...]] = ("error",)
_EITHER: Final[tuple[LogLevel, ...]] = ("info", "warning")
_TROUBLE: Final[tuple[LogLevel, ...]] = ("warning", "error")
_ANY: Final[tuple[LogLevel, ...]] = ("info", "warning", "error")
_PROCESS: Final = {"slot": int, "pid": int}
_LIFE: Final = {**_PROCESS, "generation": int}
_ENDED: Final = {**_LIFE, "exit_code": int}
_FOLLOWED: Final = dict[str, int | str | None]


def _of_connection(row: Any) -> dict[str, Any]:
    """The fields of a processor's row of a connection; in the log its id is text, and some are left out."""
    hints = get_type_hints(row, include_extras=True)
    fields = {name: NotRequired[hint] if name in LEFT_OUT else hint for name, hint in hints.items() if name not in RESTORED}
    return {**fields, "id": str, "connect_after_ns": NotRequired[int]}


def _of_processor(row: Any) -> dict[str, Any]:
    return {"slot": int, **get_type_hints(row, include_extras=True)}


# fmt: off
_CONNECTIONS: Final = {
    "opened": Event("A connection is open: the client was accepted and the upstream connected.", ("debug", "info"), _of_connection(OpenedRow)),
    "access": Event("A connection is still open.", _INFO, _of_connection(AccessRow)),
    "closed": Event("A connection has ended.", _ANY, {**_of_connection(ClosedRow), "sampled": NotRequired[int]}),
    "accept_failed": Event("A connection could not be accepted.", _ERROR, {"listener": str, "error": str}),
    "accept_waits": Event("A listener accepts no more until a quota allows it.", _WARNING,
        {"listener": str, "reason": str, "key": str, "count": int}),
    "evicted": Event("The longest idle connections were closed, because too many are open.", _WARNING, {"key": str, "excess": int, "count": int,
        "spared": str | None}),
    "eviction_failed": Event("A processor did not confirm that it closed its idle connections.", _WARNING, {"slot": int, "error": str}),
    "hand_over_failed": Event("An accepted connection could not be passed to a processor.", _ERROR, {"listener": str, "error": str}),
    "rejected": Event("A connection was rejected.", _WARNING, {"listener": str, "peer": str, "reason": str, "cause": str, "key": NotRequired[str],
        "count": NotRequired[int]}),
}
_PROCESSES: Final = {
    "handler_died": Event("A handler process ended unexpectedly.", _ERROR, {**_ENDED, "reason": str}),
    "handler_killed": Event("A handler process is killed.", _TROUBLE, {**_PROCESS, "reason": str}),
    "handler_output": Event("A handler process printed a line.", _INFO, {**_PROCESS, "line": str, "suppressed": NotRequired[int]}),
    "handler_ready": Event("A handler process takes frames.", _INFO, _LIFE),
    "handler_rejoined": Event("A processor and a handler process have a socket again.", _WARNING,
        {**_LIFE, "processor": int, "error": str, "apart_ms": int}),
    "handler_start_failed": Event("A handler process could not be started; it is tried again.", _ERROR, {"slot": int, "error": str}),
    "handler_stopped": Event("A handler process has stopped as requested.", _EITHER, {**_ENDED, "forced": NotRequired[bool]}),
    "link_unknown": Event("A process sent an unknown message.", _ERROR, {"slot": NotRequired[int], "handler": NotRequired[int], "type": str}),
    "processor_died": Event("A processor ended unexpectedly.", _ERROR, {**_ENDED, "reason": str, "connections": int}),
    "processor_killed": Event("A processor is killed.", _TROUBLE, {**_PROCESS, "reason": str}),
    "processor_output": Event("A processor printed an unexpected line.", _ERROR, {**_PROCESS, "line": str, "suppressed": NotRequired[int]}),
    "processor_ready": Event("A processor takes connections.", _INFO, _LIFE),
    "processor_start_failed": Event("A processor could not be started; it is tried again.", _ERROR, {"slot": int, "error": str}),
    "processor_stopped": Event("A processor has stopped as requested.", _EITHER, {**_ENDED, "connections": int, "forced": NotRequired[bool]}),
}
_CHANGES: Final = {
    "audit": Event("A change was requested.", _INFO, {"who": NotRequired[str], "uid": NotRequired[int], "gid": NotRequired[int],
        "pid": NotRequired[int], "certificate": NotRequired[str], "address": NotRequired[str], "role": NotRequired[str], "client": NotRequired[str],
        "method": NotRequired[str], "request": NotRequired[Any], "reason": NotRequired[str], "request_id": NotRequired[str],
        "before": NotRequired[Any], "after": NotRequired[Any], "result": NotRequired[str], "error": NotRequired[str],
        "unreadable": NotRequired[str]}),
    "audit_file": Event("Audit rows can no longer be written to their file, or, without an error, can again.", ("info", "error"),
        {"file": str, "error": str}),
    "channel_action_ended": Event("An operator's action on channels is over; it is undone.", ("info",), {"action": int, "verb": str, "filter": str,
        "reason": Literal["expired", "deleted", "no_channel"]}),
    "change_settled": Event("A change has ended after its call was cancelled.", _ANY, {"change": str,
        "result": Literal["taken back", "made", "failed"], "reason": str, "error": NotRequired[str]}),
    "change_unconfirmed": Event("A processor has not confirmed a committed change.", _EITHER, {**_PROCESS, "reason": str}),
    "container_resized": Event("The limits of the container have changed.", _EITHER, {"cpus": dict[str, int], "memory": dict[str, int | None],
        "processors": _FOLLOWED, "memory_pool": _FOLLOWED, "refused": str | None, "warning": str | None}),
    "container_unreadable": Event("The limits of the container cannot be read.", _WARNING, {"reason": str}),
    "counters_kept": Event("The counters of listeners and upstreams that are gone could not be given up.", _WARNING, {"error": str}),
    "endpoints_changed": Event("The addresses of upstreams have changed.", _INFO, {"upstreams": dict[str, list[str]]}),
    "endpoints_refused": Event("The new addresses of upstreams could not be put in force.", _ERROR, {"error": str}),
    "files_refused": Event("Replaced files are not valid; the previous contents stay in force.", _ERROR,
        {"owner": str, "kind": str, "file": str, "reason": str}),
    "files_replaced": Event("Replaced files are in force.", _INFO, {"owner": str, "kind": str, "files": list[str]}),
    "files_restored": Event("Files have the contents in force again.", _INFO, {"owner": str, "kind": str}),
    "pool_moved": Event("The shares of the memory pool have changed.", _INFO, {"shares": dict[str, int], "needy": list[int]}),
    "pool_not_moved": Event("The shares of the memory pool could not be changed.", _TROUBLE, {"error": str}),
    "configuration_applied": Event("A configuration was applied while framegate runs.", _INFO, {"by": str, "file": str, "count": int,
        "keys": list[str], "etag": str, "pending": list[str]}),
    "configuration_refused": Event("The configuration file was not applied: nothing is changed.", _ERROR,
        {"file": str, "reason": str, "faults": list[str]}),
    "reload_refused": Event("A reload was refused.", _WARNING, {"reason": str}),
    "reloaded": Event("Files were reloaded.", _INFO, {"replaced": list[str], "refused": list[str], "configuration": str}),
}
_DRAIN: Final = {"accept": Literal["refuse", "until_stop"], "by": str | None, "reason": str | None, "connections": int}
_LIFE_OF_FRAMEGATE: Final = {
    "configuration_warning": Event("The configuration may have a mistake.", _WARNING, {"line": int, "key": str, "value": str, "reason": str}),
    "drain_asked_again": Event("A drain in progress was requested again.", _INFO, {**_DRAIN, "timeout_ms": int}),
    "drain_began": Event("A drain has begun.", _INFO, {**_DRAIN, "timeout_ms": int, "delay_ms": NotRequired[int]}),
    "drain_ended": Event("No connection is left.", _INFO, {"connections": int}),
    "drain_incomplete": Event("A processor has not finished its drain.", _WARNING, {"slot": int, "reason": str}),
    "notify_failed": Event("systemd could not be notified.", _WARNING, {"error": str}),
    "serving": Event("framegate serves.", _INFO, {"listeners": dict[str, str], "admin": str, "admin_tcp": str | None, "health": str | None,
        "health_http": str | None, "prometheus": str | None, "processors": int, "version": str, "compiled": bool, "pid": int}),
    "start_failed": Event("framegate could not start.", _ERROR, {"reason": str, "error": str}),
    "stop_failed": Event("A part of framegate could not be stopped in order.", _ERROR, {"error": str}),
    "stopped": Event("framegate has stopped.", _EITHER, {"reason": NotRequired[str]}),
    "stopping": Event("framegate is stopping.", _INFO, {"reason": str}),
    "telemetry_disabled": Event("An environment variable disables telemetry that the configuration enables.", _WARNING,
        {"variable": str, "sections": list[str]}),
}
_BROKER: Final = {"upstream": str, "broker": int, "address": str, "rack": str}
_UPSTREAMS: Final = {
    "api_versions_failed": Event("An upstream could not be asked which requests it understands.", _WARNING, {"upstream": str, "error": str}),
    "broker_joined": Event("A cluster has another broker.", _INFO, _BROKER),
    "broker_left": Event("A cluster does not name a broker any more; its port is closed.", _WARNING, _BROKER),
    "broker_moved": Event("A broker has another address or rack.", _INFO, {**_BROKER, "before": dict[str, str]}),
    "brokers_refused": Event("The new brokers of a cluster could not be put in force.", _ERROR, {"upstream": str, "error": str}),
    "brokers_unreadable": Event("The brokers of a cluster could not be read; the known ones stay in use.", _WARNING, {"upstream": str, "error": str}),
    "brokers_without_port": Event("A listener has no port for some brokers; clients are told the bootstrap's address.", _WARNING, {"upstream": str,
        "listener": str, "count": int, "brokers": dict[str, str]}),
    "check_failed": Event("An endpoint fails its checks, and is left out.", _WARNING, {"upstream": str, "endpoint": str, "check": str, "error": str}),
    "check_passed": Event("An endpoint passes its checks again.", _INFO, {"upstream": str, "endpoint": str, "check": str}),
    "resolve_failed": Event("A name cannot be resolved; its last addresses stay in use.", _WARNING, {"upstream": str, "endpoint": str, "error": str}),
    "resolved": Event("A name can be resolved again.", _INFO, {"upstream": str, "endpoint": str}),
}
_TAP: Final = {
    "tap_consumer_readable": Event("The offsets of a consumer of the tap are readable again.", _INFO, {"directory": str, "consumer": str}),
    "tap_consumer_unreadable": Event("The offsets of a consumer of the tap are not readable.", _ERROR,
        {"directory": str, "consumer": str, "error": str}),
    "tap_deleted": Event("Old segments of the tap were deleted.", _EITHER, {"segments": int, "bytes": int, "unread": int}),
    "tap_disk_enough": Event("The tap's disk has room for the log's next segment again.", _INFO, {"directory": str, "free": int}),
    "tap_disk_low": Event("The tap's disk has less room than the log's next segment may need.", _WARNING,
        {"directory": str, "free": int, "needed": int}),
    "tap_gap": Event("The tap lacks frames of a processor that ended.", _WARNING, {"reason": str, "slot": int, "stream": str, "recovery": str,
        "frames": dict[str, int], "listeners": dict[str, dict[str, int]], "certainty": str}),
    "tap_keeper_failed": Event("The tap's directory cannot be maintained.", _ERROR, {"directory": str, "error": str}),
    "tap_ledger_lost": Event("The tap's ledger, or the end of it, is gone.", _ERROR, {"directory": str, "error": str}),
    "tap_losing": Event("The tap's log does not take all frames; each minute while that goes on.", _ERROR, {"directory": str,
        "frames": dict[str, int], "seconds": float}),
    "tap_losing_ended": Event("The tap's log takes all frames again.", _WARNING, {"directory": str, "frames": dict[str, int], "seconds": float}),
    "tap_orphans": Event("Processors of an earlier framegate still write to the tap.", _WARNING, {"directory": str, "streams": list[str]}),
    "tap_orphans_gone": Event("Processors of an earlier framegate do not write to the tap any more.", _INFO,
        {"directory": str, "streams": list[str]}),
    "tap_orphans_unknown": Event("It is unknown whether processors of an earlier framegate write to the tap.", _WARNING,
        {"directory": str, "error": str}),
    "tap_reserve_missing": Event("There is no room for the tap's reserve.", _WARNING, {"directory": str, "error": str}),
    "tap_sealed": Event("A segment without a writer was sealed.", _INFO, {"stream": str, "base": int, "cut_bytes": int}),
    "tap_ship_died": Event("The process that ships the tap's log has ended; it is started again.", _ERROR,
        {"pid": int, "code": int, "delay_s": float}),
    "tap_ship_failed": Event("The tap's log cannot be shipped; it is tried again.", _WARNING, {"to": str, "error": str}),
    "tap_shipping": Event("The tap's log is shipped, or shipped again.", _INFO, {"to": str}),
}
_FAULTS: Final = {
    "control_lagged": Event("The control process did not run for seconds: it was stopped, or had no CPU.", _WARNING, {"seconds": float}),
    "telemetry_export_failed": Event("Exports to a collector have begun to fail; there is no row of each.", _WARNING,
        {"signal": str, "target": str, "lost": int, "error": str}),
    "telemetry_export_recovered": Event("Exports to a collector succeed again; with all that was lost meanwhile.", _INFO, {"signal": str,
        "target": str, "lost": int, "seconds": float}),
    "library_log": Event("A library logged a message.", _TROUBLE, {"logger": str, "message": str, "error": NotRequired[str]}),
    "row_failed": Event("A row could not be written.", _ERROR, {"row": str, "error": str}),
    "subscriber_failed": Event("A subscriber of events raised an exception.", _ERROR, {"error": str}),
    "task_failed": Event("A task of the control process raised an exception; it continues.", _ERROR, {"task": str, "error": str, "trace": str,
        "message": NotRequired[str]}),
}
# fmt: on
_SAYS: Final = {
    "endpoint_down": "An endpoint of an upstream is down.",
    "endpoint_up": "An endpoint of an upstream is up again.",
    "handler_raised": "A handler raised an exception.",
    "handover_failed": "A passed connection or socket could not be used.",
    "internal_error": "A processor noted an internal error.",
    "kafka_refused": "Rules about Kafka have refused requests, or with report_only would have.",
    "tap_incomplete": "The tap's log is not complete.",
    "tap_rule_off": "A tap rule has turned itself off in a processor.",
    "tap_segment_deleted": "A segment of the tap's log was deleted while it was written.",
}
_OF_PROCESSORS: Final = {name: Event(_SAYS[name], (declared.level,), _of_processor(declared.row)) for name, declared in PROCESSORS.items()}
# fmt: off
_OF_BOTH: Final = {
    "tap_incomplete": Event(_SAYS["tap_incomplete"], _ERROR, {"error": str, "slot": NotRequired[int], "stream": NotRequired[str],
        "counted": NotRequired[bool], "frames": NotRequired[dict[str, dict[str, int | None]]]})
}
# fmt: on
EVENTS: Final[Mapping[str, Event]] = dict(
    sorted({**_CONNECTIONS, **_PROCESSES, **_CHANGES, **_LIFE_OF_FRAMEGATE, **_UPSTREAMS, **_TAP, **_FAULTS, **_OF_PROCESSORS, **_OF_BOTH}.items())
)  # by name
