"""TapService over a real socket, and tap rules as messages and back."""

import time
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from framegate.control.service.taps import RULE, rule_message
from framegate.control.service.update import MAX_ENTRIES
from framegate.control.service.validate import Violations
from framegate.control.status import TapRuleStatus, TapStop
from framegate.control.steering.transactions import etag_of
from framegate.control.v1 import tap_service_pb2 as pb2
from framegate.proxy.config.model import TapConfig, TapRule
from tests.control.service.served import refused, served
from tests.fakes.serving import Serving

FIRST = TapRule(name="first", listeners=("kafka",))
SECOND = TapRule(name="second", capture="hash")
TAP = TapConfig(directory="/nowhere", rules=(FIRST, SECOND))
WHOLE = TapRule(
    name="whole",
    listeners=("kafka",),
    directions=("response",),
    principals=("CN=x",),
    networks=("10.0.0.0/8",),
    min_size=1,
    max_size=2,
    apis=("Fetch",),
    clients=("billing-*",),
    capture="full",
    max_frame_bytes=3,
    blank=("0-1",),
    hash=("2-",),
    sample_connections=0.25,
    sample_frames=0.5,
    expires_ns=2_000_000_000_000_000_000,
    on_full="mute",
    max_loss_percent=4.0,
    max_cpu_percent=5.0,
)
WHOLE_MESSAGE: dict[str, Any] = {
    "name": "whole",
    "listeners": ["kafka"],
    "directions": [pb2.TapRule.DIRECTION_RESPONSE],
    "principals": ["CN=x"],
    "networks": ["10.0.0.0/8"],
    "min_size_bytes": 1,
    "max_size_bytes": 2,
    "apis": ["Fetch"],
    "clients": ["billing-*"],
    "capture": pb2.TapRule.CAPTURE_FULL,
    "max_frame_bytes": 3,
    "blank": ["0-1"],
    "hash": ["2-"],
    "sample_connections": 0.25,
    "sample_frames": 0.5,
    "expire_time": Timestamp(seconds=2_000_000_000),
    "on_full": pb2.TapRule.ON_FULL_MUTE,
    "max_loss_percent": 4.0,
    "max_cpu_percent": 5.0,
}


@served(tap=TAP)
async def test_every_field_of_the_model_is_one_of_the_message_and_comes_back_as_it_went(at: Serving) -> None:
    created = (await at.api.CreateTapRule(pb2.CreateTapRuleRequest(tap_rule=pb2.TapRule(**WHOLE_MESSAGE)))).tap_rule
    assert at.plane.tap_rules == [FIRST, SECOND, WHOLE]
    assert created.state == pb2.TapRule.STATE_ACTIVE
    created.ClearField("etag")
    created.ClearField("state")
    assert created == pb2.TapRule(**WHOLE_MESSAGE)
    assert {field.name for field in pb2.TapRule.DESCRIPTOR.fields} == {*RULE.fields, "name", "etag", "state", "stops"}


@served(tap=TAP)
async def test_rules_are_listed_in_their_order_and_got(at: Serving) -> None:
    at.plane.tap_rules = [SECOND, TapRule(name="over", expires_ns=5), FIRST]
    at.plane.stop_rule("second", TapStop(slot=1, cause="cpu", percent=9.5, limit=5.0, since_ns=3 * 10**9))
    page = await at.api.ListTapRules(pb2.ListTapRulesRequest(page_size=2))
    rest = await at.api.ListTapRules(pb2.ListTapRulesRequest(page_size=2, page_token=page.next_page_token))
    assert [rule.name for rule in (*page.tap_rules, *rest.tap_rules)] == ["second", "over", "first"]
    assert rest.next_page_token == ""
    states = [rule.state for rule in (*page.tap_rules, *rest.tap_rules)]
    assert states == [pb2.TapRule.STATE_STOPPED, pb2.TapRule.STATE_EXPIRED, pb2.TapRule.STATE_ACTIVE]
    (stop,) = page.tap_rules[0].stops
    assert (stop.processor_slot, stop.cause, stop.stop_time) == (1, pb2.TapRuleStop.CAUSE_CPU, Timestamp(seconds=3))
    assert (stop.percent, stop.limit_percent) == (9.5, 5.0)
    assert (await at.api.GetTapRule(pb2.GetTapRuleRequest(name="second"))).tap_rule == page.tap_rules[0]
    assert await refused(at.api.GetTapRule(pb2.GetTapRuleRequest(name="none"))) == (grpc.StatusCode.NOT_FOUND, "TAP_RULE_NOT_FOUND", [])
    assert await refused(at.api.GetTapRule(pb2.GetTapRuleRequest())) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", ["name"])
    assert at.plane.audits == []


@served(tap=TAP)
async def test_an_update_changes_what_is_named_and_nothing_else(at: Serving) -> None:

    async def update(*paths: str, **values: Any) -> TapRule:
        request = pb2.UpdateTapRuleRequest(tap_rule=pb2.TapRule(name="whole", **values), update_mask=FieldMask(paths=paths))
        await at.api.UpdateTapRule(request)
        return at.plane.tap_rules[0]

    at.plane.tap_rules = [WHOLE]
    changes = {**WHOLE_MESSAGE, "listeners": ["plain"], "sample_frames": 0.75}
    del changes["name"]
    rule = await update(sample_frames=0.75)
    assert rule == TapRule(**{**as_row(WHOLE), "sample_frames": 0.75})
    rule = await update("listeners", "min_size_bytes", listeners=["plain"], sample_frames=0.1)
    assert rule == TapRule(**{**as_row(WHOLE), "sample_frames": 0.75, "listeners": ("plain",), "min_size": 0})
    assert await update("networks", "expire_time", "directions") == TapRule(
        **{**as_row(rule), "networks": (), "expires_ns": 0, "directions": ("request", "response")}
    )
    assert await update("*", capture=pb2.TapRule.CAPTURE_HASH) == TapRule(name="whole", capture="hash")
    assert await update("*", **changes) == TapRule(**{**as_row(WHOLE), "sample_frames": 0.75, "listeners": ("plain",)})


def as_row(rule: TapRule) -> dict[str, Any]:
    return {name: getattr(rule, name) for name in TapRule.__dataclass_fields__}


@pytest.mark.parametrize("paths", [(), ("ttl",), ("expire_time",)])
@served(tap=TAP)
async def test_a_time_to_live_becomes_an_instant_when_it_comes(at: Serving, paths: tuple[str, ...]) -> None:
    before = time.time_ns()
    request = pb2.UpdateTapRuleRequest(tap_rule=pb2.TapRule(name="first", ttl=Duration(seconds=60)), update_mask=FieldMask(paths=paths))
    updated = (await at.api.UpdateTapRule(request)).tap_rule
    expires = at.plane.tap_rules[0].expires_ns
    assert before <= expires - 60 * 10**9 <= time.time_ns()
    assert (updated.WhichOneof("expiration"), updated.expire_time.ToNanoseconds()) == ("expire_time", expires)


@served(tap=TAP)
async def test_each_change_has_an_audit_row_and_one_that_is_only_validated_says_so(at: Serving) -> None:
    new = pb2.TapRule(name="new", sample_frames=0.5)
    await at.api.CreateTapRule(pb2.CreateTapRuleRequest(tap_rule=new, validate_only=True))
    await at.api.CreateTapRule(pb2.CreateTapRuleRequest(tap_rule=new, before="first"))
    await at.api.UpdateTapRule(pb2.UpdateTapRuleRequest(tap_rule=pb2.TapRule(name="first", capture=pb2.TapRule.CAPTURE_LENGTHS)))
    await at.api.DeleteTapRule(pb2.DeleteTapRuleRequest(name="first", validate_only=True))
    await at.api.DeleteTapRule(pb2.DeleteTapRuleRequest(name="first"))
    await refused(at.api.DeleteTapRule(pb2.DeleteTapRuleRequest(name="first")))
    row, kafka, two = {"name": "new", "sample_frames": 0.5}, {"name": "first", "listeners": ["kafka"]}, ["first", "second"]
    lengths = {**kafka, "capture": "lengths"}
    assert [(item["method"].rpartition("/")[2], item["before"], item["after"], item["result"], item["error"]) for item in at.plane.audits] == [
        ("CreateTapRule", None, None, "OK", ""),
        ("CreateTapRule", {"rule": None, "order": two}, {"rule": row, "order": ["new", *two]}, "OK", ""),
        ("UpdateTapRule", {"rule": kafka, "order": ["new", *two]}, {"rule": lengths, "order": ["new", *two]}, "OK", ""),
        ("DeleteTapRule", None, None, "OK", ""),
        ("DeleteTapRule", {"rule": lengths, "order": ["new", *two]}, {"rule": None, "order": ["new", "second"]}, "OK", ""),
        ("DeleteTapRule", None, None, "NOT_FOUND", "TAP_RULE_NOT_FOUND"),
    ]  # fmt: skip
    assert [item["request"].get("validate_only", False) for item in at.plane.audits] == [True, False, False, True, False, False]


INVALID, BAD = grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"
BAD_RULES: list[tuple[dict[str, Any], list[str]]] = [  # the ranges of numbers are in test_validate
    ({"name": ""}, ["tap_rule.name"]),
    ({"name": "Bad Name"}, ["tap_rule.name"]),
    ({"listeners": ["kafka", "none"]}, ["tap_rule.listeners[1]"]),
    ({"networks": ["10.0.0.1/8", "x"]}, ["tap_rule.networks[0]", "tap_rule.networks[1]"]),
    ({"directions": [0]}, ["tap_rule.directions[0]"]),
    ({"directions": [1, 9]}, ["tap_rule.directions[1]"]),
    ({"capture": 9}, ["tap_rule.capture"]),
    ({"on_full": 9}, ["tap_rule.on_full"]),
    ({"min_size_bytes": 5, "max_size_bytes": 4}, ["tap_rule.min_size_bytes"]),
    ({"apis": ["Fech"]}, ["tap_rule.apis[0]"]),
    ({"blank": ["7"], "hash": ["8-7"], "capture": pb2.TapRule.CAPTURE_FULL}, ["tap_rule.blank[0]", "tap_rule.hash[0]"]),
    ({"blank": ["0-7"], "capture": pb2.TapRule.CAPTURE_LENGTHS}, ["tap_rule.blank"]),
    ({"sample_connections": -0.1, "sample_frames": float("inf")}, ["tap_rule.sample_connections", "tap_rule.sample_frames"]),
    ({"max_loss_percent": 101.0, "max_cpu_percent": -1.0}, ["tap_rule.max_cpu_percent", "tap_rule.max_loss_percent"]),
    ({"principals": [""]}, ["tap_rule.principals[0]"]),
    ({"principals": ["x" * 257]}, ["tap_rule.principals[0]"]),
    ({"principals": ["x"] * (MAX_ENTRIES + 1)}, ["tap_rule.principals"]),
    ({"clients": ["a\0b"]}, ["tap_rule.clients[0]"]),
    ({"expire_time": Timestamp(seconds=-5)}, ["tap_rule.expire_time"]),
    ({"expire_time": Timestamp(seconds=10**10)}, ["tap_rule.expire_time"]),
    ({"expire_time": Timestamp(seconds=1_500_000_000)}, ["tap_rule.expire_time"]),
    ({"ttl": Duration()}, ["tap_rule.ttl"]),
    ({"ttl": Duration(seconds=-1)}, ["tap_rule.ttl"]),
    ({"ttl": Duration(seconds=10**10)}, ["tap_rule.ttl"]),
]


@pytest.mark.parametrize(("values", "fields"), BAD_RULES, ids=[", ".join(fields) for _, fields in BAD_RULES])
@served(tap=TAP)
async def test_a_rule_that_is_not_valid_is_refused_with_its_fields(at: Serving, values: dict[str, Any], fields: list[str]) -> None:
    code, _, named = await refused(at.api.CreateTapRule(pb2.CreateTapRuleRequest(tap_rule=pb2.TapRule(**{"name": "new", **values}))))
    assert (code, sorted(named)) == (INVALID, fields)
    if "name" not in values:
        code, _, named = await refused(at.api.UpdateTapRule(pb2.UpdateTapRuleRequest(tap_rule=pb2.TapRule(**{"name": "second", **values}))))
        assert (code, sorted(named)) == (INVALID, fields)
    assert at.plane.tap_rules == [FIRST, SECOND]


@served(tap=TAP)
async def test_a_rule_whose_time_is_over_may_be_changed_but_not_be_told_to_end_in_the_past(at: Serving) -> None:
    """It comes from a file, which is as old as it is, or was set before its time."""

    over = TapRule(name="first", expires_ns=1_500_000_000 * 10**9)
    at.plane.tap_rules = [over, *at.plane.tap_rules[1:]]
    changed = pb2.TapRule(name="first", capture=pb2.TapRule.CAPTURE_HASH)
    answer = await at.api.UpdateTapRule(pb2.UpdateTapRuleRequest(tap_rule=changed))
    assert (answer.tap_rule.state, answer.tap_rule.capture) == (pb2.TapRule.STATE_EXPIRED, pb2.TapRule.CAPTURE_HASH)
    changed.expire_time.FromNanoseconds(over.expires_ns)
    code, reason, named = await refused(at.api.UpdateTapRule(pb2.UpdateTapRuleRequest(tap_rule=changed)))
    assert (code, named) == (INVALID, ["tap_rule.expire_time"]), reason
    changed.expire_time.FromNanoseconds(time.time_ns() + 60 * 10**9)
    answer = await at.api.UpdateTapRule(pb2.UpdateTapRuleRequest(tap_rule=changed))
    assert answer.tap_rule.state == pb2.TapRule.STATE_ACTIVE


@served(tap=TAP)
async def test_other_wrong_requests_are_refused_with_their_reason(at: Serving) -> None:
    create, update = pb2.CreateTapRuleRequest, pb2.UpdateTapRuleRequest
    first, none = pb2.TapRule(name="first"), pb2.TapRule(name="none", capture=pb2.TapRule.CAPTURE_FULL)
    colour, name = FieldMask(paths=["colour"]), FieldMask(paths=["name"])
    for call, expected in [
        (at.api.CreateTapRule(create(tap_rule=first)), (grpc.StatusCode.ALREADY_EXISTS, "TAP_RULE_EXISTS", [])),
        (at.api.CreateTapRule(create(tap_rule=none, before="nobody")), (grpc.StatusCode.NOT_FOUND, "TAP_RULE_NOT_FOUND", [])),
        (at.api.UpdateTapRule(update(tap_rule=none)), (grpc.StatusCode.NOT_FOUND, "TAP_RULE_NOT_FOUND", [])),
        (at.api.UpdateTapRule(update(tap_rule=first)), (INVALID, BAD, ["tap_rule"])),
        (at.api.UpdateTapRule(update(tap_rule=first, update_mask=colour, before="second")), (INVALID, BAD, ["update_mask"])),
        (at.api.UpdateTapRule(update(tap_rule=first, update_mask=name)), (INVALID, BAD, ["update_mask"])),
        (at.api.UpdateTapRule(update()), (INVALID, BAD, ["tap_rule", "tap_rule.name"])),
        (at.api.DeleteTapRule(pb2.DeleteTapRuleRequest()), (INVALID, BAD, ["name"])),
    ]:
        code, reason, fields = await refused(call)
        assert (code, reason, sorted(fields)) == expected
    at.plane.failure = at.plane.aborted()
    assert await refused(at.api.DeleteTapRule(pb2.DeleteTapRuleRequest(name="first"))) == (grpc.StatusCode.ABORTED, "PROCESSOR_SILENT", [])
    assert at.plane.tap_rules == [FIRST, SECOND]


@pytest.mark.parametrize("rule", [TapRule(name="least"), WHOLE])
def test_a_rule_comes_back_as_it_went(rule: TapRule) -> None:
    message = rule_message(TapRuleStatus(rule=rule, expired=False))
    assert (message.name, message.etag) == (rule.name, etag_of(rule))
    assert TapRule(name=message.name, **RULE.changes(message, RULE.fields, Violations())) == rule


def test_a_rule_records_or_loses_or_has_ended() -> None:
    rule = TapRule(name="r")
    stop = TapStop(slot=0, cause="loss", percent=9.0, limit=5.0, since_ns=1)
    for facts, state in (
        ({}, pb2.TapRule.STATE_ACTIVE),
        ({"losing": True}, pb2.TapRule.STATE_LOSING),
        ({"losing": True, "stops": (stop,)}, pb2.TapRule.STATE_STOPPED),
        ({"losing": True, "expired": True}, pb2.TapRule.STATE_EXPIRED),
    ):
        assert rule_message(TapRuleStatus(**{"rule": rule, "expired": False, **facts})).state == state  # type: ignore[arg-type]
