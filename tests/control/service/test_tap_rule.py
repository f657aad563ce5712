"""Rules as messages: what one way loses the other cannot bring back. What is refused, and how, is ``test_taps``'s, over a real socket."""

import pytest
from google.protobuf.field_mask_pb2 import FieldMask

from framegate.control.service.tap_rule import FIELDS, changed_paths, new_values, rule_message, rule_row
from framegate.control.service.validate import Violations
from framegate.control.status import TapRuleStatus, TapStop
from framegate.control.v1 import tap_service_pb2 as pb2
from framegate.proxy.config.model import TapRule
from tests.control.service.test_taps import WHOLE

NOW = 1_700_000_000_000_000_000


@pytest.mark.parametrize("rule", [TapRule(name="least"), WHOLE])
def test_a_rule_comes_back_as_it_went(rule: TapRule) -> None:
    message = rule_message(TapRuleStatus(rule=rule, etag="e", expired=False))
    assert (message.name, message.etag) == (rule.name, "e")
    assert TapRule(name=message.name, **new_values(message, FIELDS, NOW, Violations())) == rule


def test_a_change_is_about_what_the_mask_names_or_what_is_set() -> None:
    message = pb2.TapRule(name="r", max_frame_bytes=0, apis=["Fetch"])
    assert changed_paths(message, FieldMask(), Violations()) == {"max_frame_bytes", "apis"}
    assert changed_paths(message, FieldMask(paths=["capture"]), Violations()) == {"capture"}
    assert changed_paths(message, FieldMask(paths=["*"]), Violations()) == set(FIELDS)


def test_a_row_has_what_is_not_as_it_would_be_anyway() -> None:
    assert rule_row(TapRule(name="r")) == {"name": "r"}
    assert rule_row(TapRule(name="r", capture="hash")) == {"name": "r", "capture": "hash"}


def test_a_rule_records_or_loses_or_has_ended() -> None:
    rule = TapRule(name="r")
    stop = TapStop(slot=0, cause="loss", percent=9.0, limit=5.0, since_ns=1)
    for facts, state in (
        ({}, pb2.TapRule.STATE_ACTIVE),
        ({"losing": True}, pb2.TapRule.STATE_LOSING),
        ({"losing": True, "stops": (stop,)}, pb2.TapRule.STATE_STOPPED),
        ({"losing": True, "expired": True}, pb2.TapRule.STATE_EXPIRED),
    ):
        assert rule_message(TapRuleStatus(**{"rule": rule, "etag": "e", "expired": False, **facts})).state == state  # type: ignore[arg-type]
