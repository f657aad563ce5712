"""Checks of requests, and pages of lists in memory."""

from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from framegate.control.bounds import FIELD_NAMES
from framegate.control.errors import InvalidArgumentError
from framegate.control.identity.passwords import MAX_ITERATIONS, MIN_ITERATIONS
from framegate.control.service.validate import MAX_REASON, Violations, duration_ms, page, reason, required, selection
from framegate.control.steering.filter import Filter
from framegate.control.v1.channel_service_pb2 import ChannelSelector
from framegate.control.v1.limit_service_pb2 import UpdateLimitRequest, UpdateNodeLimitsRequest
from framegate.control.v1.pool_service_pb2 import UpdateMemoryPoolRequest, UpdateProcessorPoolRequest
from framegate.control.v1.proxy_service_pb2 import DrainProxyRequest
from framegate.control.v1.tap_service_pb2 import CreateTapRuleRequest
from framegate.control.v1.user_service_pb2 import CreateUserRequest
from framegate.proxy.config.key import Key, keys
from framegate.proxy.config.limits import MAX_RECEIVE_SIZE, RateLimits
from framegate.proxy.config.model import MAX_PROCESSORS, POOL_SIZE, DrainConfig, TapConfig, TapRule
from tests.fakes.serving import Serving, run


def fields(violations: Violations) -> list[str]:
    try:
        violations.check()
    except InvalidArgumentError as error:
        return [item.field for item in error.violations]
    return []


@pytest.mark.parametrize(("text", "needed", "good"), [
    ("", False, True), ("", True, False), ("  ", True, False), ("x" * MAX_REASON, True, True), ("x" * (MAX_REASON + 1), False, False),
    ("tab\t", False, False), ("Grüße", True, True),
])  # fmt: skip
def test_a_reason_is_one_line_of_bounded_length(text: str, needed: bool, good: bool) -> None:
    violations = Violations()
    reason(text, violations, needed=needed)
    assert fields(violations) == ([] if good else ["reason"])


def test_a_selection_is_a_filter_or_ids() -> None:
    violations = Violations()
    chosen = selection(ChannelSelector(filter=" principal=User:alice  age>1s"), violations)
    assert isinstance(chosen, Filter)
    assert (chosen.text, fields(violations)) == ("principal=User:alice age>1s", [])
    selection(ChannelSelector(filter=" "), violations)
    assert fields(violations) == ["selector.filter"]
    with pytest.raises(InvalidArgumentError, match=r"selector.filter: character 1: .*"):
        selection(ChannelSelector(filter="age"), violations)


def test_a_duration_is_rounded_up_and_bounded() -> None:
    violations = Violations()
    given = [(0, 0), (0, 1), (0, 10**6), (1, 1), (5, 0)]
    assert [duration_ms(Duration(seconds=s, nanos=n), "ttl", 5_000, violations) for s, n in given] == [0, 1, 1, 1001, 5_000]
    assert fields(violations) == []
    for s, n, least in ((5, 1, 1), (-1, 0, 1), (0, 999_000_000, 1_000)):
        duration_ms(Duration(seconds=s, nanos=n), "ttl", 5_000, violations, least_ms=least)
    assert fields(violations) == ["ttl"] * 3


def test_a_required_text_must_not_be_empty_and_only_the_first_violations_are_listed() -> None:
    violations = Violations()
    assert required("x", "a", violations) == "x"
    assert fields(violations) == []
    for number in range(1_000):
        required("", f"f{number}", violations)
    *listed, last = fields(violations)
    assert listed
    assert (listed, last) == ([f"f{number}" for number in range(len(listed))], "…")


QUOTAS = {name: own for name, own in FIELD_NAMES.items() if own in keys(RateLimits)}
_CREATED = CreateTapRuleRequest(validate_only=True)
_CREATED.tap_rule.name = "new"
_LIMIT = UpdateLimitRequest()
_LIMIT.limit.listener = "kafka"
_RULE_KEYS = {own: name for name, own in FIELD_NAMES.items()}
_SETTABLE: list[tuple[str, Any, str, Key]] = [
    ("LimitService/UpdateLimit", _LIMIT, "limit.max_receive_size_bytes", MAX_RECEIVE_SIZE),
    ("PoolService/UpdateMemoryPool", UpdateMemoryPoolRequest(), "memory_pool.size_bytes", POOL_SIZE),
    ("PoolService/UpdateProcessorPool", UpdateProcessorPoolRequest(), "processor_pool.processor_count", Key("", range=(1, MAX_PROCESSORS))),
    ("ProxyService/DrainProxy", DrainProxyRequest(), "timeout", keys(DrainConfig)["timeout_ms"]),
    ("UserService/CreateUser", CreateUserRequest(), "user.credentials.iterations", Key("", range=(MIN_ITERATIONS, MAX_ITERATIONS))),
    *(("LimitService/UpdateLimit", _LIMIT, f"limit.{name}", keys(RateLimits)[own]) for name, own in QUOTAS.items()),
    *(
        ("LimitService/UpdateNodeLimits", UpdateNodeLimitsRequest(), f"node_limits.{where}{name}", keys(RateLimits)[own])
        for name, own in QUOTAS.items()
        for where in ("", "per_address.", "overrides.")
    ),
    *(
        ("TapService/CreateTapRule", _CREATED, f"tap_rule.{_RULE_KEYS.get(name, name)}", key)
        for name, key in keys(TapRule).items()
        if key.range is not None
    ),
]


def _request(empty: Any, path: str, value: float) -> Any:
    """A request that sets one value; None: the field's type has no such value."""
    request = type(empty)()
    request.CopyFrom(empty)
    message, (*parts, name) = request, path.split(".")
    for part in parts:
        inner = getattr(message, part)
        message = inner.add() if message.DESCRIPTOR.fields_by_name[part].is_repeated else inner
    if "mechanism" in message.DESCRIPTOR.fields_by_name:
        message.mechanism = 1
    try:
        if name == "timeout":
            seconds, ms = divmod(int(value), 1000)
            message.timeout.seconds, message.timeout.nanos = seconds, ms * 10**6
        else:
            setattr(message, name, value)
    except ValueError:
        return None
    return request


async def _refused(at: Serving, method: str, request: Any) -> set[str]:
    """The fields that a call is refused for."""
    try:
        await at.channel.unary_unary(f"/framegate.control.v1.{method}")(request.SerializeToString())
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            return {error.code().name}
        return {word.partition(":")[0].replace("[0]", "") for word in str(error.details()).split("; ")}
    return set()


@pytest.mark.slow
def test_each_value_that_can_be_set_has_the_range_of_its_key_in_the_file() -> None:
    assert len(_SETTABLE) == 5 + 4 * 6 + 7, "a field of the API that sets a number is in the list"

    async def body(at: Serving) -> None:
        for method, empty, path, key in _SETTABLE:
            for value in (key.least - 1, key.most + 1, -1, 2**63 - 1, 2**31 - 1, -(2**63), key.least, key.most):
                request = _request(empty, path, value)
                if request is not None:
                    told = await _refused(at, method, request)
                    assert "INTERNAL" not in told
                    assert (path in told) is not key.takes(value), f"{method}: {path} = {value}: {told}"

    run(body, tap=TapConfig(directory="/nowhere"))


ITEMS = [(name, name.upper()) for name in "abcde"]


def test_the_pages_together_are_the_list_and_new_items_between_two_pages_repeat_nothing() -> None:
    first, token = page(ITEMS, 2, "")
    assert page([("0", "new"), *ITEMS], 2, token)[0] == ["C", "D"]
    second, token = page(ITEMS, 2, token)
    third, token = page(ITEMS, 2, token)
    assert (first, second, third, token) == (["A", "B"], ["C", "D"], ["E"], "")
    assert page(ITEMS, 5, "") == (["A", "B", "C", "D", "E"], ""), "a list that fits has no next page"
    assert page([], 5, "") == ([], "")


@pytest.mark.parametrize("token", ["!", "%%%", "enp6eg==", "é"])
def test_a_foreign_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        page(ITEMS, 2, token)
    assert caught.value.violations[0].field == "page_token"
