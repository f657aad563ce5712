"""Every update has the same rules: masks, etags, dry runs, reasons, request ids; and changes that race with others, over a live fleet."""

import asyncio
import dataclasses
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from framegate.control.service import start
from framegate.control.service.access import METHODS
from framegate.control.service.kafka_rules import RULES
from framegate.control.service.limits import LIMIT, NODE
from framegate.control.v1 import limit_service_pb2
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from framegate.proxy.config.model import AdminConfig, TapConfig, TapRule
from tests.control.service.served import refused, served
from tests.fakes.fleet import Fleet, until
from tests.fakes.fleet import run as run_fleet
from tests.fakes.scenario import run_by
from tests.fakes.serving import Serving

TAP: Final = TapConfig(directory="/nowhere", rules=(TapRule(name="r", capture="hash"),))
INVALID: Final = grpc.StatusCode.INVALID_ARGUMENT


class Case(NamedTuple):
    """A resource. ``values``: those of a good update; ``defaults``: what a mask that names them all gives without them, if that is allowed."""

    method: str
    field: str
    values: dict[str, Any]
    key: dict[str, Any]
    defaults: dict[str, Any] | None = None


CASES: Final = (
    Case("LimitService/UpdateLimit", "limit", {"max_receive_size_bytes": 9, "max_connection_count": 3}, {"listener": "plain"},
         {"max_receive_size_bytes": 100 << 20, "max_connection_count": 0}),
    Case("LimitService/UpdateNodeLimits", "node_limits", {"connections_per_second": 4}, {}, {"connections_per_second": 0}),
    Case("PoolService/UpdateMemoryPool", "memory_pool", {"size_bytes": 300 << 20}, {}),
    Case("PoolService/UpdateProcessorPool", "processor_pool", {"processor_count": 1}, {}),
    Case("LogService/UpdateLog", "log", {"level": 1, "silenced_events": ["closed"]}, {}, {"level": 2, "silenced_events": []}),
    Case("KafkaRuleService/UpdateKafkaRules", "kafka_rules", {"report_only": True}, {"listener": "kafka"}, {"report_only": False}),
    Case("TapService/UpdateTapRule", "tap_rule", {"capture": 2, "sample_frames": 0.5}, {"name": "r"}, {"capture": 1, "sample_frames": 1.0}),
)  # fmt: skip
CHANGEABLE: Final = {"limit": LIMIT.fields, "node_limits": NODE.fields, "kafka_rules": RULES.fields}
UPDATES: Final = {name.rpartition(".")[2] for name in METHODS if "/Update" in name} - {"UserService/UpdateUser"}
"""A user's credentials cannot be read, so it has tests of its own."""


async def call(at: Serving, method: str, request: Message) -> Any:
    service, _, name = method.partition("/")
    rpc = descriptor_pool.Default().FindServiceByName(f"framegate.control.v1.{service}").methods_by_name[name]
    answer = message_factory.GetMessageClass(rpc.output_type)
    return await at.channel.unary_unary(f"/framegate.control.v1.{method}", lambda sent: sent.SerializeToString(), answer.FromString)(request)


def request(case: Case, *paths: str, values: dict[str, Any] | None = None, etag: str = "", **others: Any) -> Any:
    service, _, name = case.method.partition("/")
    rpc = descriptor_pool.Default().FindServiceByName(f"framegate.control.v1.{service}").methods_by_name[name]
    resource = {**case.key, **(case.values if values is None else values), "etag": etag}
    made: Any = message_factory.GetMessageClass(rpc.input_type)(**{case.field: resource}, **others)
    made.update_mask.paths.extend(paths)
    return made


def test_every_update_is_in_the_table_and_has_the_common_fields() -> None:
    assert {case.method for case in CASES} == UPDATES
    for case in CASES:
        fields = request(case).DESCRIPTOR.fields_by_name
        assert [fields[name].number for name in (case.field, "update_mask", "validate_only", "reason", "request_id")] == [1, 2, 3, 4, 5]


@served(tap=TAP)
async def test_a_mask_says_what_changes(at: Serving) -> None:
    for case in CASES:
        name = next(iter(case.values))
        for paths, values, wrong in (
            ((), {}, [case.field]),
            (("colour",), None, ["update_mask"]),
            (("etag", name), None, ["update_mask"]),
            ((name.title(),), None, ["update_mask"]),
            (next(iter(case.key), "colour"), None, ["update_mask"]),
        ):
            made = request(case, *((paths,) if isinstance(paths, str) else paths), values=values)
            assert await refused(call(at, case.method, made)) == (INVALID, "INVALID_ARGUMENT", wrong), case
        if case.key:
            made = request(case._replace(key={}))
            assert (await refused(call(at, case.method, made)))[2] == [f"{case.field}.{next(iter(case.key))}"]
        for paths, values, expected in (
            ((), case.values, case.values),
            ((name,), case.values, {name: case.values[name]}),
            ((name,), {}, None if case.defaults is None else {name: case.defaults[name]}),
            (("*",), {}, case.defaults),
        ):
            made = request(case, *paths, values=values)
            if expected is None:
                assert (await refused(call(at, case.method, made)))[2] == [f"{case.field}.{name}"], "it must have a value"
                continue
            found = getattr(await call(at, case.method, made), case.field)
            if case.field != "tap_rule":  # whose rows have the whole rule
                assert set(at.plane.audits[-1]["after"]) == {*expected} | ({*CHANGEABLE.get(case.field, expected)} if paths == ("*",) else set())
            shown = {key: getattr(found, key) for key in expected}
            assert {key: list(value) if isinstance(expected[key], list) else value for key, value in shown.items()} == expected, (case, paths)
    assert at.plane.audit_places == 0


@served(tap=TAP)
async def test_an_etag_is_that_of_the_values_and_a_dry_run_changes_nothing(at: Serving) -> None:
    for case in CASES:
        before = at.plane.config
        dry = getattr(await call(at, case.method, request(case, validate_only=True)), case.field)
        again = getattr(await call(at, case.method, request(case, validate_only=True)), case.field)
        assert dry.etag == again.etag, "it is that of the result"
        assert at.plane.config == before, case
        changed = getattr(await call(at, case.method, request(case)), case.field)
        assert changed.etag == dry.etag, case
        at.plane.audits.clear()
        for validate_only in (True, False):
            made = request(case, etag="beef", validate_only=validate_only)
            assert (await refused(call(at, case.method, made)))[:2] == (grpc.StatusCode.ABORTED, "ETAG_MISMATCH")
        await call(at, case.method, request(case, etag=changed.etag, validate_only=True))
        await call(at, case.method, request(case, etag=changed.etag))
        assert [row["result"] for row in at.plane.audits] == ["ABORTED", "ABORTED", "OK", "OK"]
        assert [row["after"] is not None for row in at.plane.audits] == [False, False, False, True], "a dry run changes nothing"


@served(tap=TAP)
async def test_reasons_and_request_ids_are_checked_and_a_repeated_call_changes_nothing(at: Serving) -> None:
    for case in CASES:
        for wrong in ({"reason": "x" * 257}, {"reason": "two\nlines"}, {"request_id": "7"}):
            assert (await refused(call(at, case.method, request(case, **wrong))))[2] == list(wrong)
        at.plane.audits.clear()
        request_id = str(uuid.uuid4())
        first = await call(at, case.method, request(case, reason="incident 7", request_id=request_id))
        at.plane.failure = ZeroDivisionError("nothing is asked")
        assert await call(at, case.method, request(case, reason="incident 7", request_id=request_id)) == first
        assert (await refused(call(at, case.method, request(case, request_id=request_id))))[2] == ["request_id"], "of another request"
        at.plane.failure = None
        assert [(row["result"], row["after"] is None) for row in at.plane.audits] == [
            ("OK", False), ("OK", True), ("INVALID_ARGUMENT", True)
        ]  # fmt: skip
        assert at.plane.audits[0]["request"]["reason"] == "incident 7"


# Changes that race, over real processors.


async def over_grpc(made: Fleet, scenario: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = dataclasses.replace(made.desired.config, admin=AdminConfig(address=f"unix:{folder}/admin.sock"), health=None)
        service = await start(made.steering, config)
        try:
            async with grpc.aio.insecure_channel(service.address) as channel:
                await scenario(channel)
        finally:
            await service.stop(0)
            await until(lambda: not made.steering.transactions._running)
            await asyncio.sleep(0.01)  # the last rows


def check_chain(rows: list[dict[str, Any]]) -> int:
    """Each value before a change is that after the last one. Returns the number of changes that were made."""
    known: dict[tuple[str, str], Any] = {}
    made = 0
    for row in rows:
        if row["after"] is None:
            assert row["result"] != "OK", row
            continue
        made += 1
        for path, value in row["after"].items():
            key = row["method"], path
            assert key not in known or known[key] == row["before"][path], row
            known[key] = value
    return made


@pytest.mark.slow
@run_by(run_fleet, 2)
async def test_no_read_modify_write_with_an_etag_is_lost(made: Fleet) -> None:
    clients, rounds = 4, 15

    async def client(channel: grpc.aio.Channel) -> None:
        stub = LimitServiceStub(channel)
        left = rounds
        while left:
            limit = (await stub.GetLimit(limit_service_pb2.GetLimitRequest(listener="a"))).limit
            wanted = limit_service_pb2.Limit(listener="a", max_connection_count=limit.max_connection_count + 1, etag=limit.etag)
            try:
                await stub.UpdateLimit(limit_service_pb2.UpdateLimitRequest(limit=wanted))
                left -= 1
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.ABORTED:
                    raise

    async def scenario(channel: grpc.aio.Channel) -> None:
        await asyncio.gather(*(client(channel) for _ in range(clients)))

    await over_grpc(made, scenario)
    assert made.steering.limits.get("a")[0].connections == clients * rounds
    check_chain([row for row in made.log.events("audit") if row["result"] == "OK"])


@run_by(run_fleet, 2)
async def test_a_change_whose_call_ends_is_completed_has_its_row_then_and_is_not_made_again(made: Fleet, *, monkeypatch: pytest.MonkeyPatch) -> None:
    change, decided, go_on = made.supervisor.change, asyncio.Event(), asyncio.Event()

    async def slowly(build: Any, commit: Any, check: Any, decide: Any) -> None:
        await change(build, commit, check, decide)
        decided.set()
        await go_on.wait()

    async def scenario(channel: grpc.aio.Channel) -> None:
        monkeypatch.setattr(made.supervisor, "change", slowly)
        stub = LimitServiceStub(channel)
        limit = limit_service_pb2.Limit(listener="a", max_connection_count=7)
        request = limit_service_pb2.UpdateLimitRequest(limit=limit, request_id=str(uuid.uuid4()))
        call = stub.UpdateLimit(request)
        waiting = asyncio.ensure_future(decided.wait())
        await asyncio.wait([waiting, asyncio.ensure_future(call.code())], return_when=asyncio.FIRST_COMPLETED)
        call.cancel()
        repeated = asyncio.ensure_future(stub.UpdateLimit(request))
        await asyncio.sleep(0.05)
        assert made.log.events("audit") == []
        go_on.set()
        assert (await repeated).limit.max_connection_count == 7

    await over_grpc(made, scenario)
    first, second = made.log.events("audit")
    assert (first["result"], first["before"], first["after"]) == ("CANCELLED", {"max_connection_count": 0}, {"max_connection_count": 7})
    assert (second["result"], second["after"]) == ("OK", None)
    assert made.meters.value("config.changes", "") == 1
