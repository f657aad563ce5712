"""Any request can be quoted in an audit row: without its secrets, and no longer than a bound."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from framegate.control.service.quoting import MAX_QUOTED, MAX_VALUE, bounded, shown
from framegate.control.v1 import limit_service_pb2, pool_service_pb2, tap_service_pb2, user_service_pb2


def test_fields_that_are_marked_as_secret_are_left_out_everywhere() -> None:
    one = user_service_pb2.Credential(mechanism=1, iterations=1, salt=b"x", stored_key=b"y", server_key=b"z")
    request = user_service_pb2.CreateUserRequest(listener="a", user=user_service_pb2.User(name="n", credentials=[one, one]))
    shown_one = {"mechanism": "SCRAM_MECHANISM_SHA_256", "iterations": 1}
    assert shown(request) == {"listener": "a", "user": {"name": "n", "credentials": [shown_one, shown_one]}}
    assert request.user.credentials[1].server_key == b"z", "the request itself is as it was"


def test_fields_that_are_marked_as_secret_are_left_out_of_maps() -> None:
    of = descriptor_pb2.FieldDescriptorProto
    secret = descriptor_pb2.FieldOptions(debug_redact=True)
    entry = descriptor_pb2.MessageOptions(map_entry=True)
    kept = of(name="kept", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    inner = descriptor_pb2.DescriptorProto(
        name="Inner", field=[kept, of(name="lost", number=2, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL, options=secret)]
    )
    key = of(name="key", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    entries = [
        descriptor_pb2.DescriptorProto(name=name, field=[key, of(name="value", number=2, label=of.LABEL_OPTIONAL, **kind)], options=entry)
        for name, kind in (("TextsEntry", {"type": of.TYPE_STRING}), ("InnersEntry", {"type": of.TYPE_MESSAGE, "type_name": ".audit.Inner"}))
    ]
    maps = [
        of(name=name, number=number, type=of.TYPE_MESSAGE, label=of.LABEL_REPEATED, type_name=f".audit.Outer.{name.title()}Entry")
        for number, name in enumerate(("texts", "inners"), 1)
    ]
    outer = descriptor_pb2.DescriptorProto(name="Outer", field=maps, nested_type=entries)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto(name="audit.proto", package="audit", syntax="proto3", message_type=[inner, outer]))
    request = message_factory.GetMessageClass(pool.FindMessageTypeByName("audit.Outer"))()
    request.texts["a"] = "b"
    request.inners["c"].kept, request.inners["c"].lost = "d", "canary"
    assert shown(request) == {"texts": {"a": "b"}, "inners": {"c": {"kept": "d"}}}


def test_values_that_protobufs_json_does_not_allow_are_shown_as_they_are() -> None:
    request = tap_service_pb2.CreateTapRuleRequest()
    request.tap_rule.stops.add(percent=float("nan")).stop_time.seconds = 2**62
    request.tap_rule.ttl.nanos = -(2**31)
    assert shown(request) == {"tap_rule": {"stops": [{"percent": "nan", "stop_time": f"{2**62} s and 0 ns"}], "ttl": "0 s and -2147483648 ns"}}
    update = limit_service_pb2.UpdateLimitRequest()
    update.update_mask.paths.extend(["maxReceiveSizeBytes", "a..b"])
    update.limit.max_receive_size_bytes = 7
    assert shown(update) == {"limit": {"max_receive_size_bytes": "7"}, "update_mask": "maxReceiveSizeBytes,a..b"}


def test_a_quotation_has_a_bound_and_says_what_is_left_out() -> None:
    def rule(name: str) -> tap_service_pb2.CreateTapRuleRequest:
        return tap_service_pb2.CreateTapRuleRequest(tap_rule=tap_service_pb2.TapRule(name=name))

    for length in (MAX_QUOTED - 1, MAX_QUOTED):
        assert shown(rule("a" * length)) == {"tap_rule": {"name": "a" * length}}
    assert shown(rule("a" * (MAX_QUOTED + 1))) == {"tap_rule": {"name": "a" * MAX_QUOTED + f"… ({MAX_QUOTED + 1} characters)"}}
    many = tap_service_pb2.TapRule(principals=["u" * 92] * 10_000)
    found = shown(many)["principals"]
    assert len(str(found)) < 2 * MAX_QUOTED
    assert (found[0], found[-1]) == ("u" * 92, f"… {10_000 - (len(found) - 1)} more")
    percents = pool_service_pb2.MemoryPool(guaranteed_percents={f"{number:0100}": 1 for number in range(10_000)})
    told = shown(percents)["guaranteed_percents"]
    assert len(str(told)) < 2 * MAX_QUOTED
    assert told["…"] == f"{10_000 - (len(told) - 1)} more"


def test_a_value_above_the_bound_is_shown_by_its_beginning_and_its_digest() -> None:
    for value in (None, {"a": [1, "x"]}, "x" * (MAX_VALUE - 2), {(1, 2): "no JSON"}):
        assert bounded(value) is value
    found = bounded({"a": "x" * MAX_VALUE})
    assert (len(found["beginning"]), found["characters"], len(found["sha256"])) == (MAX_VALUE, MAX_VALUE + 8, 64)
