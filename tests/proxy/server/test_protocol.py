"""Messages: each is taken as it is declared, and refused with the name of what is wrong."""

import json
import typing
from typing import Any

import pytest

from framegate.proxy.server import messages, rows
from framegate.proxy.server.messages import (
    BulkCommand,
    Change,
    DemandNotice,
    DrainedNotice,
    HandlerFacts,
    HandlerReadyMessage,
    HandlerStartMessage,
    LogNotice,
    PartedNotice,
    ReadyMessage,
    RequestSpansNotice,
    StartMessage,
)
from framegate.proxy.server.protocol import (
    EVENTS,
    HANDLER_NOTICES,
    NOTICES,
    REPLIES,
    WIRE_VERSION,
    MessageError,
    Request,
    bulk_request,
    commit_request,
    describe_request,
    drain_request,
    event_notice,
    evict_request,
    holders_request,
    list_request,
    prepare_request,
    read_command,
    read_handler_notice,
    read_handler_ready,
    read_handler_start,
    read_notice,
    read_ready,
    read_start,
    upstreams_request,
)
from framegate.proxy.server.rows import DemandRow, HandlerRaisedRow, TapRuleOffRow
from framegate.proxy.server.schema import schema_of
from tests.fakes.cases import each_of
from tests.fakes.rows import open_row, request_span_row

START = StartMessage(
    type="start", wire=WIRE_VERSION, config={}, slot=0, generation=1, boot_id="b", share=1, endpoints={"u": [["", 1, "/s"], ["h", 2, "a", 5]]}
)
READY = ReadyMessage(type="ready", wire=WIRE_VERSION, pid=1, modules={})
HANDLER_START = HandlerStartMessage(type="start", wire=WIRE_VERSION, slot=0, generation=1, node="n", handlers={"l": "m:h"}, path=["/p"])
HANDLER_READY = HandlerReadyMessage(type="ready", wire=WIRE_VERSION, pid=1, handlers={"l": HandlerFacts(directions=["request"], description="")})
BULK = BulkCommand(type="mute", connections=[1], reason="")
REQUESTS: list[Request[Any]] = [
    prepare_request(Change(share=5)),
    commit_request(),
    list_request(after=0, limit=5, listener=None),
    describe_request(7),
    *(bulk_request(BulkCommand(**{**BULK, "type": word})) for word in ("mute", "unmute", "close", "throttle")),
    upstreams_request(),
    holders_request(5),
    evict_request(7, None),
    drain_request(5),
]


def sent(message: Any) -> Any:
    return json.loads(json.dumps(message))


@each_of("request_", REQUESTS)
def test_what_control_asks_is_what_a_processor_takes(request_: Request[Any]) -> None:
    message = sent({**request_.message, "id": 5})
    assert read_command(message) == message
    assert message["type"] in REPLIES
    with pytest.raises(MessageError, match=rf"{message['type']}\.id is missing"):
        read_command(sent(request_.message))


def words(declared: Any) -> tuple[str, ...]:
    return typing.get_args(typing.get_type_hints(declared)["type"])


def test_each_message_can_be_checked_and_has_a_word_of_its_own_kind() -> None:
    for declared in (each for each in vars(messages).values() if typing.is_typeddict(each) and "type" in each.__annotations__):
        assert schema_of(declared).fault({}) != ""
        assert words(declared)
        assert "type" in declared.__required_keys__
    for union in (messages.Command, messages.Notice, messages.HandlerNotice):
        found = [word for each in typing.get_args(union) for word in words(each)]
        assert len(set(found)) == len(found)


def test_each_command_has_replies_but_those_without_a_reply() -> None:
    commands = [word for each in typing.get_args(messages.Command) for word in words(each)]
    assert sorted(commands) == sorted([*REPLIES, "answer", "parts", "stop"])
    assert read_command({"type": "stop"}) == {"type": "stop"}


@each_of(
    ("answer", "text"),
    [
        ({"type": "result", "rows": [open_row()]}, "result.next is missing"),
        ({"type": "result", "rows": [{**open_row(), "muted": None}], "next": 0}, "result.rows[0].muted must be a list, not null"),
        ({"type": "result", "rows": [open_row(), {**open_row(), "facts": {}}], "next": 0}, "result.rows[1].facts is not known"),
        ({"type": "prepared"}, "prepared: prepared is no answer"),
        ({"type": "error"}, "error.error is missing"),
    ],
)
def test_an_answer_that_is_none_is_an_error_with_the_name_of_the_key(answer: dict[str, Any], text: str) -> None:
    request = list_request(after=0, limit=5, listener=None)
    assert request.read({**answer, "id": 5}) == {"type": "error", "id": 5, "error": f"the answer to list cannot be read: {text}"}


def test_an_answer_and_an_error_are_given_as_they_are() -> None:
    request = list_request(after=0, limit=5, listener=None)
    for answer in ({"type": "result", "id": 5, "rows": [open_row()], "next": 0}, {"type": "error", "id": None, "error": "no"}):
        assert request.read(sent(answer)) == answer


@each_of("key", sorted(StartMessage.__required_keys__ - {"type", "wire"}))
def test_a_start_without_a_key_is_refused_with_its_name(key: str) -> None:
    assert read_start(sent(START)) == START
    with pytest.raises(MessageError, match=rf"^start\.{key} is missing$"):
        read_start({name: value for name, value in START.items() if name != key})


@each_of("wire", [WIRE_VERSION - 1, WIRE_VERSION + 1, None, str(WIRE_VERSION), "nonsense" * 100])
def test_another_version_or_none_is_refused_by_both_ends_before_anything_else_is_judged(wire: Any) -> None:
    start, ready = {"type": "start", "colour": "red"}, {"type": "ready", "colour": "red"}
    for read, first in ((read_start, start), (read_ready, ready), (read_handler_start, start), (read_handler_ready, ready)):
        with pytest.raises(
            MessageError, match=f"speaks (no version|version .*) of the link, and .* version {WIRE_VERSION}: they are of different releases"
        ) as caught:
            read(first if wire is None else {**first, "wire": wire})
        assert len(str(caught.value)) < 150


def test_the_first_messages_are_checked() -> None:
    right: list[tuple[Any, Any]] = [(read_ready, READY), (read_handler_start, HANDLER_START), (read_handler_ready, HANDLER_READY)]
    assert [read(sent(message)) for read, message in right] == [message for _, message in right]
    wrong: list[tuple[Any, Any, str]] = [
        (read_ready, {**READY, "pid": "1"}, r"^ready\.pid must be int, not str$"),
        (read_start, {"type": "list"}, "the first message is list, not start"),
        (read_handler_start, {"type": "stop"}, "the first message is stop, not start"),
        (read_handler_start, {**HANDLER_START, "handlers": {"l": 1}}, r"^start\.handlers\.l must be str, not int$"),
        (read_handler_ready, {**HANDLER_READY, "handlers": {"l": {"directions": []}}}, r"^ready\.handlers\.l\.description is missing$"),
    ]
    for read, message, text in wrong:
        with pytest.raises(MessageError, match=text):
            read(message)


def test_the_notices_of_a_handler_process_are_judged() -> None:
    raised = event_notice("handler_raised", HandlerRaisedRow(listener="l", handler="m:h", connection="c", error="e", traceback="t", suppressed=0))
    for notice in (raised, PartedNotice(type="parted", pair=5, error="why")):
        assert read_handler_notice(sent(notice)) == notice
    assert set(HANDLER_NOTICES) == {"log", "parted"}
    with pytest.raises(MessageError, match=r"^handler_raised\.listener is missing$"):
        read_handler_notice({**raised, "fields": {}})


def test_events_are_told_by_the_names_and_levels_of_the_table() -> None:
    row = TapRuleOffRow(rule="r", cause="cpu", percent=50.0, limit=30)
    notice = event_notice("tap_rule_off", row)
    assert read_notice(sent(notice)) == LogNotice(type="log", level="warning", event="tap_rule_off", fields=dict(row))
    declared = {name for name in vars(rows) if name.endswith("Row") and name in {each.__name__ for each in typing.get_args(rows.EventRow)}}
    assert len(declared) == len(EVENTS)


@each_of(
    ("message", "text"),
    [
        ({"type": "log", "level": "loud", "event": "tap_incomplete", "fields": {}}, "log.level must be info or warning or error"),
        ({"type": "log", "level": "info", "event": "dance", "fields": {}}, "no event dance"),
        ({"type": "log", "level": "error", "event": "tap_incomplete", "fields": {}}, "tap_incomplete.error is missing"),
        ({"type": "log", "level": "error", "event": "tap_incomplete", "fields": {"error": 5}}, "tap_incomplete.error must be str, not int"),
        ({"type": "drained", "open": 0}, "drained.cut_off is missing"),
        ({"type": "parted", "pair": "0.1", "error": ""}, "parted.pair must be int, not str"),
        ({"type": "demand", "demands": [{"level": "moon"}]}, "demand.demands\\[0\\].level must be node or listener or rule or address"),
        ({"type": "closed", "rows": "all"}, "closed.rows must be a list, not str"),
    ],
)
def test_a_notice_that_is_none_is_refused_with_the_name_of_the_key(message: dict[str, Any], text: str) -> None:
    with pytest.raises(MessageError, match=f"^{text}"):
        read_notice(message)


def test_notices_are_taken() -> None:
    notice = DrainedNotice(type="drained", open=0, cut_off=1)
    assert read_notice(sent(notice)) == notice
    assert read_notice({"type": "closed", "rows": ["5 7 {}"]})["type"] == "closed"
    rows, others = {"access", "opened", "closed", "frame_refused", "log", "request_spans"}, {"brokers_seen", "demand", "forget", "question"}
    assert set(NOTICES) == rows | others | {"drained", "parted"}
    spans = RequestSpansNotice(type="request_spans", spans=[request_span_row(parents=["p"])], skipped=2)
    assert read_notice(sent(spans)) == spans
    parted = PartedNotice(type="parted", pair=5, error="")
    assert read_notice(sent(parted)) == parted
    assert read_notice({"type": "forget", "number": 5})["type"] == "forget"
    row = DemandRow(level="node", name="", counter="request_bytes", used=5, waiting=0, wanting=0)
    assert read_notice(sent(DemandNotice(type="demand", demands=[row])))["type"] == "demand"
