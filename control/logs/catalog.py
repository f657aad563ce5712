"""Every event that there is: what it means, of which level its rows are, and what they have. Who adds an event to the code adds it here.

Fields are declared with the types of JSON that ``proxy.server.shape`` takes; one that is not in every row is ``NotRequired``. Every row has
``time``, ``level`` and ``event``; any may have ``rows_dropped`` (so many were not kept before it), ``trace_id`` and ``span_id`` (it belongs to a
span).
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, NotRequired, get_origin, get_type_hints

from proxy.config.log import LogLevel
from proxy.server.protocol import EVENTS as PROCESSORS
from proxy.server.rows import AccessRow, ClosedRow, OpenedRow

__all__ = ["COMMON", "EVENTS", "MEANINGS", "Event"]

COMMON: Final[Mapping[str, Any]] = {
    "time": str,
    "level": Literal["debug", "info", "warning", "error"],
    "event": str,
    "rows_dropped": NotRequired[int],
    "trace_id": NotRequired[str],
    "span_id": NotRequired[str],
}


class Event(NamedTuple):
    """What is known of the rows of one name.

    Attributes:
        says: what has happened, a sentence.
        levels: those that its rows have.
        fields: the type of each, besides ``COMMON``.
    """

    says: str
    levels: tuple[LogLevel, ...]
    fields: Mapping[str, Any]

    @property
    def required(self) -> set[str]:
        """Fields that are in every row."""
        return {name for name, hint in self.fields.items() if get_origin(hint) is not NotRequired}


_INFO: Final[tuple[LogLevel, ...]] = ("info",)
_WARNING: Final[tuple[LogLevel, ...]] = ("warning",)
_ERROR: Final[tuple[LogLevel, ...]] = ("error",)
_EITHER: Final[tuple[LogLevel, ...]] = ("info", "warning")
_TROUBLE: Final[tuple[LogLevel, ...]] = ("warning", "error")
_PROCESS: Final = {"slot": int, "pid": int}
_LIFE: Final = {**_PROCESS, "generation": int}
_ENDED: Final = {**_LIFE, "exit_code": int}
_FOLLOWED: Final = dict[str, int | str | None]


def _of_connection(row: Any) -> dict[str, Any]:
    """A processor's row of a connection; in the log its id is text."""
    return {**get_type_hints(row, include_extras=True), "id": str}


def _of_processor(row: Any) -> dict[str, Any]:
    return {"slot": int, **get_type_hints(row, include_extras=True)}


_CONNECTIONS: Final = {
    "opened": Event("A client was let in and its upstream reached.", ("debug", "info"), _of_connection(OpenedRow)),
    "access": Event("A connection is still open.", _INFO, _of_connection(AccessRow)),
    "closed": Event("A connection is over.", _INFO, _of_connection(ClosedRow)),
    "accept_failed": Event("A connection could not be accepted.", _ERROR, {"listener": str, "error": str}),
    "accept_waits": Event(
        "A listener accepts no more until a quota allows it.", _WARNING, {"listener": str, "reason": str, "key": str, "count": int}
    ),
    "evicted": Event(
        "The idlest connections were closed, for more are open than may be.",
        _WARNING,
        {"key": str, "excess": int, "count": int, "spared": str | None},
    ),
    "eviction_failed": Event("A processor was to close its idlest connections, and has not said so.", _WARNING, {"slot": int, "error": str}),
    "hand_over_failed": Event("An accepted connection could not be given to a processor.", _ERROR, {"listener": str, "error": str}),
    "rejected": Event(
        "A client was turned away.",
        _WARNING,
        {"listener": str, "peer": str, "reason": str, "cause": str, "key": NotRequired[str], "count": NotRequired[int]},
    ),
}
_PROCESSES: Final = {
    "handler_died": Event("A handler process ended that should not have.", _ERROR, {**_ENDED, "reason": str}),
    "handler_killed": Event("A handler process is killed.", _TROUBLE, {**_PROCESS, "reason": str}),
    "handler_output": Event("A handler process printed a line.", _INFO, {**_PROCESS, "line": str, "suppressed": NotRequired[int]}),
    "handler_ready": Event("A handler process takes frames.", _INFO, _LIFE),
    "handler_rejoined": Event(
        "A processor and a handler process have a socket again.", _WARNING, {**_LIFE, "processor": int, "error": str, "apart_ms": int}
    ),
    "handler_start_failed": Event("A handler process could not be started; it is tried again.", _ERROR, {"slot": int, "error": str}),
    "handler_stopped": Event("A handler process has ended as it was to.", _EITHER, {**_ENDED, "forced": NotRequired[bool]}),
    "link_unknown": Event(
        "A process said something that nobody knows.", _ERROR, {"slot": NotRequired[int], "handler": NotRequired[int], "type": str}
    ),
    "processor_died": Event("A processor ended that should not have.", _ERROR, {**_ENDED, "reason": str, "connections": int}),
    "processor_killed": Event("A processor is killed.", _TROUBLE, {**_PROCESS, "reason": str}),
    "processor_output": Event(
        "A processor printed a line, which it has no reason to.", _ERROR, {**_PROCESS, "line": str, "suppressed": NotRequired[int]}
    ),
    "processor_ready": Event("A processor takes connections.", _INFO, _LIFE),
    "processor_start_failed": Event("A processor could not be started; it is tried again.", _ERROR, {"slot": int, "error": str}),
    "processor_stopped": Event("A processor has ended as it was to.", _EITHER, {**_ENDED, "connections": int, "forced": NotRequired[bool]}),
}
_CHANGES: Final = {
    "audit": Event(
        "Somebody asked for a change.",
        _INFO,
        {
            "who": NotRequired[str],
            "client": NotRequired[str],
            "method": NotRequired[str],
            "request": NotRequired[Any],
            "before": NotRequired[Any],
            "after": NotRequired[Any],
            "result": NotRequired[str],
            "error": NotRequired[str],
            "unreadable": NotRequired[str],
        },
    ),
    "change_settled": Event(
        "A change has ended whose call was over before it.",
        ("info", "warning", "error"),
        {"change": str, "result": Literal["taken back", "made", "failed"], "reason": str, "error": NotRequired[str]},
    ),
    "change_unconfirmed": Event("A processor has not confirmed a change that is decided.", _EITHER, {**_PROCESS, "reason": str}),
    "container_resized": Event(
        "What the container allows has changed.",
        _EITHER,
        {
            "cpus": dict[str, int],
            "memory": dict[str, int | None],
            "processors": _FOLLOWED,
            "memory_pool": _FOLLOWED,
            "refused": str | None,
            "warning": str | None,
        },
    ),
    "container_unreadable": Event("What the container allows cannot be read.", _WARNING, {"reason": str}),
    "endpoints_changed": Event("The addresses of upstreams are others now.", _INFO, {"upstreams": dict[str, list[str]]}),
    "endpoints_refused": Event("The new addresses of upstreams could not be put in force.", _ERROR, {"error": str}),
    "files_refused": Event(
        "Files that were replaced are no good: what was in force stays.", _ERROR, {"owner": str, "kind": str, "file": str, "reason": str}
    ),
    "files_replaced": Event("Files that were replaced are in force.", _INFO, {"owner": str, "kind": str, "files": list[str]}),
    "files_restored": Event("Files hold again what is in force.", _INFO, {"owner": str, "kind": str}),
    "pool_moved": Event("Processors have other shares of the memory pool.", _INFO, {"shares": dict[str, int], "needy": list[int]}),
    "pool_not_moved": Event("The shares of the memory pool stay as they are.", _TROUBLE, {"error": str}),
    "reload_refused": Event("Files were not looked at.", _WARNING, {"reason": str}),
    "reloaded": Event(
        "Files were looked at, and those that are new taken.", _INFO, {"replaced": list[str], "refused": list[str], "configuration": str}
    ),
}
_DRAIN: Final = {"accept": Literal["refuse", "until_stop"], "by": str | None, "reason": str | None, "connections": int}
_LIFE_OF_FRAMEGATE: Final = {
    "configuration_warning": Event(
        "The configuration has something in it that is perhaps not meant.", _WARNING, {"line": int, "key": str, "value": str, "reason": str}
    ),
    "drain_asked_again": Event("A drain that goes on was asked for again.", _INFO, {**_DRAIN, "timeout_ms": int}),
    "drain_began": Event("A drain has begun.", _INFO, {**_DRAIN, "timeout_ms": NotRequired[int]}),
    "drain_ended": Event("No connection is left.", _INFO, {"connections": int}),
    "drain_incomplete": Event("A processor has not come to the end of its drain.", _WARNING, {"slot": int, "reason": str}),
    "notify_failed": Event("systemd could not be told how framegate is.", _WARNING, {"error": str}),
    "serving": Event(
        "framegate serves.",
        _INFO,
        {
            "listeners": dict[str, str],
            "admin": str,
            "health": str | None,
            "health_http": str | None,
            "prometheus": str | None,
            "processors": int,
            "version": str,
            "compiled": bool,
            "pid": int,
        },
    ),
    "start_failed": Event("framegate could not start.", _ERROR, {"reason": str, "error": str}),
    "stop_failed": Event("A part of framegate could not be ended in order.", _ERROR, {"error": str}),
    "stopped": Event("framegate has ended.", _EITHER, {"reason": NotRequired[str]}),
    "stopping": Event("framegate is to end.", _INFO, {"reason": str}),
    "telemetry_disabled": Event(
        "A variable of the environment turns off telemetry of the configuration.",
        _WARNING,
        {"variable": str, "sections": list[str]},
    ),
}
_UPSTREAMS: Final = {
    "api_versions_failed": Event("An upstream could not be asked which requests it understands.", _WARNING, {"upstream": str, "error": str}),
    "resolve_failed": Event("A name cannot be looked up: its last addresses stay.", _WARNING, {"upstream": str, "endpoint": str, "error": str}),
    "resolved": Event("A name can be looked up again.", _INFO, {"upstream": str, "endpoint": str}),
}
_TAP: Final = {
    "tap_consumer_readable": Event("What a consumer of the tap has read is known again.", _INFO, {"directory": str, "consumer": str}),
    "tap_consumer_unreadable": Event("What a consumer of the tap has read is not known.", _ERROR, {"directory": str, "consumer": str, "error": str}),
    "tap_deleted": Event("Old segments of the tap were deleted.", _EITHER, {"segments": int, "bytes": int, "unread": int}),
    "tap_disk_enough": Event("The tap's disk has room for the log's next segment again.", _INFO, {"directory": str, "free": int}),
    "tap_disk_low": Event(
        "The tap's disk has less room than the log's next segment may need.", _WARNING, {"directory": str, "free": int, "needed": int}
    ),
    "tap_gap": Event(
        "The tap's record lacks frames of a processor that ended.",
        _WARNING,
        {
            "reason": str,
            "slot": int,
            "stream": str,
            "recovery": str,
            "frames": dict[str, int],
            "listeners": dict[str, dict[str, int]],
            "certainty": str,
        },
    ),
    "tap_keeper_failed": Event("The tap's directory cannot be kept in order.", _ERROR, {"directory": str, "error": str}),
    "tap_ledger_lost": Event("The tap's ledger, or the end of it, is gone.", _ERROR, {"directory": str, "error": str}),
    "tap_losing": Event(
        "The tap's log does not take all frames; each minute while that goes on.",
        _ERROR,
        {"directory": str, "frames": dict[str, int], "seconds": float},
    ),
    "tap_losing_ended": Event("The tap's log takes all frames again.", _WARNING, {"directory": str, "frames": dict[str, int], "seconds": float}),
    "tap_orphans": Event("Processors of an earlier framegate still write to the tap.", _WARNING, {"directory": str, "streams": list[str]}),
    "tap_orphans_gone": Event(
        "Processors of an earlier framegate do not write to the tap any more.", _INFO, {"directory": str, "streams": list[str]}
    ),
    "tap_orphans_unknown": Event(
        "Nobody can tell whether processors of an earlier framegate write to the tap.", _WARNING, {"directory": str, "error": str}
    ),
    "tap_reserve_missing": Event("There is no room for the tap's reserve.", _WARNING, {"directory": str, "error": str}),
    "tap_sealed": Event("A segment that nobody writes any more was sealed.", _INFO, {"stream": str, "base": int, "cut_bytes": int}),
}
_FAULTS: Final = {
    "library_log": Event("A library that framegate uses says something.", _TROUBLE, {"logger": str, "message": str, "error": NotRequired[str]}),
    "row_failed": Event("A row could not be written.", _ERROR, {"row": str, "error": str}),
    "subscriber_failed": Event("Somebody who is told of events raised.", _ERROR, {"error": str}),
    "task_failed": Event(
        "A part of the control process raised; it goes on.",
        _ERROR,
        {"task": str, "error": str, "trace": str, "message": NotRequired[str]},
    ),
}
_SAYS: Final = {
    "endpoint_down": "An address of an upstream is left out.",
    "endpoint_up": "An address of an upstream is used again.",
    "handler_raised": "A handler raised.",
    "handover_failed": "A connection or socket that was handed over could not be taken.",
    "internal_error": "A processor noted a fault of its own.",
    "tap_incomplete": "The tap's log does not hold all that it was given.",
    "tap_rule_off": "A tap rule has turned itself off in a processor.",
    "tap_segment_deleted": "Somebody deleted a segment of the tap's log while it was written.",
}
_OF_PROCESSORS: Final = {name: Event(_SAYS[name], (declared.level,), _of_processor(declared.row)) for name, declared in PROCESSORS.items()}
_OF_BOTH: Final = {
    "tap_incomplete": Event(
        _SAYS["tap_incomplete"],
        _ERROR,
        {
            "error": str,
            "slot": NotRequired[int],
            "stream": NotRequired[str],
            "counted": NotRequired[bool],
            "frames": NotRequired[dict[str, dict[str, int | None]]],
        },
    ),
}
EVENTS: Final[Mapping[str, Event]] = dict(
    sorted({**_CONNECTIONS, **_PROCESSES, **_CHANGES, **_LIFE_OF_FRAMEGATE, **_UPSTREAMS, **_TAP, **_FAULTS, **_OF_PROCESSORS, **_OF_BOTH}.items())
)
"""By name."""
MEANINGS: Final = (
    ("id", "names the connection, in the API, in `framegate channels` and in the tap's tables as well"),
    ("listener", "where the client came"),
    ("peer", "the client's address"),
    ("upstream", "where its frames go; empty: a handler answers"),
    ("endpoint", "the upstream's address that was tried last; empty: none was"),
    ("principal", "who the client is, by its certificate or its login"),
    ("mechanism", "of SASL, by which it proved that; `null`: by none"),
    ("tls", "version, cipher and the fingerprint of the certificate that the client was shown; `null`: plaintext, or the handshake is not done"),
    ("frames", "received from the client (`request`) and from the upstream (`response`) since it was opened; or sent by a handler"),
    ("bytes", "likewise"),
    ("opened_ns", "when it was accepted"),
    (
        "handshake_ns",
        "from when a processor had it until the client was let in, TLS and login together, or that failed; `null`: neither was asked for",
    ),
    ("connect_ns", "from the first attempt to reach the upstream until one was ready, TLS and login included, or the last had failed"),
    ("connect_started_ns", "when the first attempt began; `null`: there was none"),
    ("attempts", "to reach the upstream, each at one address"),
    ("state", "`handshaking`, `connecting_upstream`, `open`, `half_closed`, `closing`, `draining`; of `closed`: when its cause came up"),
    ("muted", "why the client is not read now (README, invariant 5)"),
    ("muted_upstream", "why the upstream is not"),
    ("in_flight", "requests without an answer, under `protocol: kafka`; else 0"),
    ("last_active_ns", "when a byte passed last"),
    ("lost", "bytes received that were not passed on, or will not be"),
    ("mutes", "by cause, how often the client was not read for it, and for how long; what goes on is not in it"),
    ("cause", "why it ended (README, the list of causes)"),
    ("detail", "more about that, in words"),
    ("side", "who ended it: `downstream` (the client), `upstream`, or `internal` (framegate)"),
    ("closed_ns", "when it ended"),
)
"""What the fields of the rows of connections say; of other events the names do."""
