"""What the gRPC service relies on, of a control plane: the real one over real processors and the fake of the service's tests allow and refuse the
same. One process serves all tests of a kind; each leaves it as it was.
"""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import pytest

from control.errors import AlreadyExistsError, ControlError, EtagError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from control.events import Event
from control.fleet.processor import COMMAND
from control.plane import ControlPlane
from control.steering.steering import Steering
from proxy.config.limits import LimitOverride, LimitsConfig, RateLimits
from proxy.config.model import LEAST_POOL, MIB, Forwarding, TapConfig, TapRule
from tests.fakes.conformance import Kind
from tests.fakes.fleet import Fleet, fleet_config
from tests.fakes.plane import FakePlane, channel_row, closed_row
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame

UNKNOWN = (3 << 57) + 5
ALL = TapRule(name="all")


class Given:
    """A plane with two processors, the listener ``a``, a pool of 12 MiB and a tap with the rule ``all``; ``connect`` opens a channel."""

    def __init__(self, plane: ControlPlane, connect: Callable[[], Awaitable[None]]) -> None:
        self.plane = plane
        self.connect = connect

    async def ids(self, count: int) -> list[int]:
        for _ in range(count):
            await self.connect()
        rows, token = await self.plane.list_channels("a", 1000)
        assert token == ""
        while (await self.plane.list_listeners())[0].connections != len(rows):  # the acceptor's thread counts after it has handed over
            await asyncio.sleep(0.01)
        return [row["id"] for row in rows]


@contextlib.asynccontextmanager
async def fake() -> AsyncIterator[Given]:
    plane = FakePlane(fleet_config(2, TapConfig(directory="/nowhere", rules=(ALL,))))
    opened = 0

    async def connect() -> None:
        nonlocal opened
        opened += 1
        plane.add(channel_row(f"{opened % 2}-1-{opened}", "a"))

    try:
        yield Given(plane, connect)
    finally:
        plane.close()


@contextlib.asynccontextmanager
async def real() -> AsyncIterator[Given]:
    upstream = ScriptedUpstream()
    folder = tempfile.TemporaryDirectory()
    made = Fleet(fleet_config(2, TapConfig(directory=folder.name, rules=(ALL,))), command=COMMAND, endpoint=("127.0.0.1", upstream.port))
    clients: list[socket.socket] = []

    def open_one() -> None:
        host, _, port = made.acceptor.listeners["a"].address.rpartition(":")
        client = socket.create_connection((host, int(port)), timeout=10)
        clients.append(client)
        client.sendall(frame(b"hello"))
        assert read_frame(client) == b"hello"

    try:
        await made.supervisor.start_slots(range(2))
        made.acceptor.start()
        made.steering.set_serving()
        yield Given(made.steering, lambda: asyncio.to_thread(open_one))
    finally:
        for client in clients:
            client.close()
        await made.close()
        upstream.close()
        folder.cleanup()


class Stage:
    """Runs coroutines over one plane for as long as the module's tests of one kind last."""

    def __init__(self, kind: Callable[[], Any]) -> None:
        self._runner = asyncio.Runner()
        self._context = kind()
        self.kind: Given = self._runner.run(self._context.__aenter__())

    def run(self, body: Callable[[Given], Awaitable[None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                await body(self.kind)
                await self.kind.plane.close_channels(listener="a")
                await until_empty(self.kind.plane)

        self._runner.run(main())

    def close(self) -> None:
        self._runner.run(self._context.__aexit__(None, None, None))
        self._runner.close()


async def until_empty(plane: ControlPlane) -> None:
    while (await plane.list_channels("a"))[0]:
        await asyncio.sleep(0.01)


INTERFACE: Final = ControlPlane
KINDS: Final = {"fake": Kind(FakePlane, fake), "real": Kind(Steering, real)}


@pytest.fixture(scope="module", params=KINDS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(KINDS[request.param].make)
    yield made
    made.close()


def test_what_there_is(stage: Stage) -> None:
    async def body(kind: Given) -> None:
        plane = kind.plane
        assert [(item.listener, item.max_receive_size) for item in await plane.get_limits()] == [("a", MIB)]
        pool = await plane.get_pool()
        assert (pool.tap_limit, dict(pool.guaranteed), [item.usage for item in pool.shares][2:]) == (16 * MIB, {}, [])
        assert [(item.rule, item.expired, item.stops) for item in await plane.list_tap_rules()] == [(ALL, False, ())]
        assert await plane.top_holders(100) == []
        assert (pool.size, pool.processors, [(item.slot, item.share) for item in pool.shares]) == (12 * MIB, 2, [(0, 6 * MIB), (1, 6 * MIB)])
        assert [(item.slot, item.state) for item in await plane.status()] == [(0, "running"), (1, "running")]
        (listener,) = await plane.list_listeners()
        assert (listener.name, listener.upstream, listener.accepting, listener.max_receive_size) == ("a", "u", True, MIB)
        assert listener.forwarding == Forwarding()
        assert [item.name for item in await plane.list_upstreams()] == ["u"]
        assert plane.handler_processes() == []
        assert (await plane.list_certificates(), await plane.reload()) == ([], []), "nothing here speaks TLS"
        assert (plane.health().started, plane.health().alive, plane.health().ready) == (True, True, True)
        assert [slot for slot, _ in plane.cells] == [0, 1]
        assert plane.config.node == "test"
        assert plane.started_ns > 10**18
        assert plane.build.version

    stage.run(body)


def test_channels_are_listed_in_pages_and_described(stage: Stage) -> None:
    async def body(kind: Given) -> None:
        ids = await kind.ids(5)
        seen: list[int] = []
        token = ""
        while True:
            rows, token = await kind.plane.list_channels(None, 2, token)
            seen += [row["id"] for row in rows]
            if not token:
                break
        assert seen == ids == sorted(ids)
        row = await kind.plane.describe_channel(ids[0])
        assert (row["id"], row["listener"], row["upstream"], row["muted"]) == (ids[0], "a", "u" if row["upstream"] == "u" else "brokers", [])
        assert set(channel_row("0-1-1")) <= set(row)

    stage.run(body)


REFUSALS: list[tuple[str, Callable[[ControlPlane], Awaitable[Any]], type[ControlError]]] = [
    ("list of an unknown listener", lambda plane: plane.list_channels("none"), NotFoundError),
    ("negative page", lambda plane: plane.list_channels(None, -1), InvalidArgumentError),
    ("token of nobody", lambda plane: plane.list_channels(None, 5, "x"), InvalidArgumentError),
    ("unknown channel", lambda plane: plane.describe_channel(UNKNOWN), NotFoundError),
    ("an event that is none", lambda plane: plane.set_log("error", {"none": False}), InvalidArgumentError),
    ("no audit rows", lambda plane: plane.set_log("error", {"audit": False}), InvalidArgumentError),
    ("mute of an unknown channel", lambda plane: plane.mute_channels([UNKNOWN]), NotFoundError),
    ("unmute of an unknown channel", lambda plane: plane.unmute_channels([UNKNOWN]), NotFoundError),
    ("close of an unknown channel", lambda plane: plane.close_channels([UNKNOWN]), NotFoundError),
    ("mute of an unknown listener", lambda plane: plane.mute_channels(listener="none"), NotFoundError),
    ("mute of nothing", lambda plane: plane.mute_channels(), InvalidArgumentError),
    ("mute of both", lambda plane: plane.mute_channels([UNKNOWN], "a"), InvalidArgumentError),
    ("limits of an unknown listener", lambda plane: plane.get_limits("none"), NotFoundError),
    ("limit of an unknown listener", lambda plane: plane.set_limit("none", 5), NotFoundError),
    ("limit of nothing", lambda plane: plane.set_limit("a", 0), InvalidArgumentError),
    ("limit above the header's", lambda plane: plane.set_limit("a", 2**31), InvalidArgumentError),
    ("limit above the share", lambda plane: plane.set_limit("a", 6 * MIB + 1), FailedPreconditionError),
    ("limit of no change", lambda plane: plane.set_limit("a"), InvalidArgumentError),
    ("quota out of range", lambda plane: plane.set_limit("a", quotas={"connections": -1}), InvalidArgumentError),
    ("quota that is none", lambda plane: plane.set_limit("a", quotas={"colour": 1}), InvalidArgumentError),
    ("quotas of the node without a change", lambda plane: plane.set_node_limits({}), InvalidArgumentError),
    ("quota of the node out of range", lambda plane: plane.set_node_limits({"connections": -1}), InvalidArgumentError),
    ("quota of addresses out of range", lambda plane: plane.set_node_limits({"per_address": {"connections": -1}}), InvalidArgumentError),
    ("quotas of no network", lambda plane: plane.set_node_limits({"overrides": (LimitOverride(network="x"),)}), InvalidArgumentError),
    ("another protected listener", lambda plane: plane.set_node_limits({"protected_listener": "a"}), InvalidArgumentError),
    ("quotas that are others", lambda plane: plane.set_node_limits({"connections": 1}, "beef"), EtagError),
    ("nobody of those who hold most", lambda plane: plane.top_holders(0), InvalidArgumentError),
    ("too many of those who hold most", lambda plane: plane.top_holders(101), InvalidArgumentError),
    ("pool of nothing", lambda plane: plane.set_pool_size(0), InvalidArgumentError),
    ("pool below the least", lambda plane: plane.set_pool_size(LEAST_POOL - 1), InvalidArgumentError),
    ("pool above the most", lambda plane: plane.set_pool_size((1 << 50) + 1), InvalidArgumentError),
    ("drain above the most", lambda plane: plane.drain(3_600_001), InvalidArgumentError),
    ("pool below the frames", lambda plane: plane.set_pool_size(2 * MIB - 1), FailedPreconditionError),
    ("no processors", lambda plane: plane.set_processors(0), InvalidArgumentError),
    ("too many processors", lambda plane: plane.set_processors(65), InvalidArgumentError),
    ("more processors than the pool allows", lambda plane: plane.set_processors(13), FailedPreconditionError),
    ("tap rule with a name that is taken", lambda plane: plane.create_tap_rule(ALL), AlreadyExistsError),
    ("tap rule before nobody", lambda plane: plane.create_tap_rule(TapRule(name="x"), "none"), NotFoundError),
    ("tap rule of an unknown listener", lambda plane: plane.create_tap_rule(TapRule(name="x", listeners=("none",))), InvalidArgumentError),
    ("tap rule of no network", lambda plane: plane.update_tap_rule("all", {"networks": ("10.0.0.1/8",)}), InvalidArgumentError),
    ("tap rule out of range", lambda plane: plane.update_tap_rule("all", {"sample_frames": 2.0}), InvalidArgumentError),
    ("change of no tap rule", lambda plane: plane.update_tap_rule("none", {}), NotFoundError),
    ("change of another tap rule", lambda plane: plane.update_tap_rule("all", {}, None, "beef"), EtagError),
    ("end of no tap rule", lambda plane: plane.delete_tap_rule("none"), NotFoundError),
    ("end of another tap rule", lambda plane: plane.delete_tap_rule("all", "beef"), EtagError),
    ("users of an unknown listener", lambda plane: plane.list_users("none"), NotFoundError),
    ("users of a listener without", lambda plane: plane.list_users("a"), FailedPreconditionError),
    ("a user of an unknown listener", lambda plane: plane.create_user("none", "alice", {}), NotFoundError),
    ("a user of a listener without", lambda plane: plane.update_user("a", "alice", {}), FailedPreconditionError),
    ("end of a user of a listener without", lambda plane: plane.delete_user("a", "alice"), FailedPreconditionError),
    ("drain in the past", lambda plane: plane.drain(-1), InvalidArgumentError),
]


@pytest.mark.parametrize(("call", "error"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_what_is_refused_changes_nothing(stage: Stage, call: Callable[[ControlPlane], Awaitable[Any]], error: type[ControlError]) -> None:
    async def body(kind: Given) -> None:
        with pytest.raises(error):
            await call(kind.plane)
        assert (await kind.plane.get_limits("a"))[0].max_receive_size == MIB
        assert ((await kind.plane.get_pool()).size, (await kind.plane.get_pool()).processors) == (12 * MIB, 2)
        assert [item.rule for item in await kind.plane.list_tap_rules()] == [ALL]
        assert kind.plane.health().ready

    stage.run(body)


def test_channels_are_muted_unmuted_and_closed(stage: Stage) -> None:
    async def body(kind: Given) -> None:
        plane = kind.plane
        subscription = plane.subscribe(("closed",))
        ids = await kind.ids(3)
        outcome = await plane.mute_channels([*ids[:2], UNKNOWN], reason="test")
        assert (sorted(outcome.affected), outcome.missing) == (ids[:2], (UNKNOWN,))
        rows, _ = await plane.list_channels()
        assert [row["muted"] for row in rows] == [["admin"], ["admin"], []]
        assert [row["mute_reason"] for row in rows] == ["test", "test", ""]
        assert sorted((await plane.unmute_channels(listener="a")).affected) == ids
        assert (await plane.close_channels(ids[:1], reason="enough")).affected == (ids[0],)
        event = await anext(subscription)
        assert isinstance(event, Event)
        row = event.row
        assert (row["event"], row["id"], row["cause"], row["detail"], row["listener"]) == ("closed", ids[0], "admin", "enough", "a")
        assert set(row) == set(closed_row("0-1-1", "admin"))
        subscription.close()
        assert [item async for item in subscription] == []

    stage.run(body)


def test_events_are_numbered_and_who_comes_back_goes_on_behind_the_last_it_saw(stage: Stage) -> None:
    async def body(kind: Given) -> None:
        plane = kind.plane
        audits = plane.subscribe(("audit",))
        for who in ("ada", "bob"):
            plane.reserve_audit()
            plane.audit({"event": "audit", "who": who})
        first, second = await anext(audits), await anext(audits)
        assert isinstance(first, Event)
        assert isinstance(second, Event)
        assert (first.row["who"], second.row["who"], second.sequence, first.reserved) == ("ada", "bob", first.sequence + 1, True)
        assert first.sequence > audits.after
        assert plane.subscribe(("audit",), after=first.sequence).take() == [second]
        assert plane.subscribe(("closed",), after=audits.after).take() == []
        with pytest.raises(FailedPreconditionError) as caught:
            plane.subscribe(after=second.sequence + 1)
        assert caught.value.reason == "EVENTS_UNKNOWN"
        audits.close()

    stage.run(body)


def test_limits_and_pool_are_what_they_were_set_to(stage: Stage) -> None:
    async def body(kind: Given) -> None:
        plane = kind.plane
        assert (await plane.set_limit("a", 2 * MIB)).max_receive_size == 2 * MIB
        assert (await plane.get_limits("a"))[0].max_receive_size == 2 * MIB
        pool = await plane.set_pool_size(9 * MIB + 1)
        assert (pool.size, [item.share for item in pool.shares]) == (9 * MIB + 1, [9 * MIB // 2 + 1, 9 * MIB // 2])
        assert (await plane.set_pool_size(12 * MIB)) == await plane.get_pool()
        assert (await plane.set_limit("a", MIB)).max_receive_size == MIB
        assert (await plane.set_limit("a", quotas={"request_bytes_rate": 5})).quotas == RateLimits(request_bytes_rate=5)
        assert (await plane.set_limit("a", MIB, {"request_bytes_rate": 0})).quotas == RateLimits()
        overrides = (LimitOverride(network="192.0.2.0/24", access="deny"),)
        node = await plane.set_node_limits({"request_frames_rate": 4, "per_address": {"connections": 9}, "overrides": overrides})
        assert node.quotas == LimitsConfig(request_frames_rate=4, per_address=RateLimits(connections=9), overrides=overrides)
        assert node == await plane.get_node_limits()
        back = {"request_frames_rate": 0, "per_address": {"connections": 0}, "overrides": ()}
        assert (await plane.set_node_limits(back, node.etag)).quotas == LimitsConfig()

    stage.run(body)


def test_the_log_is_what_it_was_set_to(stage: Stage) -> None:
    async def body(kind: Given) -> None:
        plane = kind.plane
        before = await plane.get_log()
        assert (before.format, before.level, before.silenced) == ("json", "info", ())
        changed = await plane.set_log("warning", {"closed": False, "access": False})
        assert (changed.level, changed.silenced) == ("warning", ("access", "closed"))
        assert await plane.get_log() == changed
        assert plane.config.log.level == "warning"
        assert (await plane.set_log(events={"closed": True, "access": True})).level == "warning"
        assert await plane.set_log("info") == before
        assert plane.config.log.level == "info"

    stage.run(body)


def test_tap_rules_are_what_they_were_set_to(stage: Stage) -> None:
    async def body(kind: Given) -> None:
        plane = kind.plane

        async def names() -> list[str]:
            return [item.rule.name for item in await plane.list_tap_rules()]

        await kind.ids(2)
        first = await plane.create_tap_rule(TapRule(name="first", listeners=("a",), capture="hash"), "all")
        assert (first.rule.capture, await names()) == ("hash", ["first", "all"])
        assert (await plane.update_tap_rule("first", {"capture": "lengths"}, validate_only=True)).rule.capture == "lengths"
        assert (await plane.list_tap_rules())[0] == first
        changed = await plane.update_tap_rule("first", {"capture": "lengths"}, None, first.etag)
        assert ((await plane.list_tap_rules())[0], changed.rule.listeners, await names()) == (changed, ("a",), ["first", "all"])
        with pytest.raises(EtagError):
            await plane.update_tap_rule("first", {"capture": "full"}, None, first.etag)
        await plane.update_tap_rule("first", {}, "")
        assert await names() == ["all", "first"]
        await plane.update_tap_rule("first", {"expires_ns": 5})
        assert [item.expired for item in await plane.list_tap_rules()] == [False, True]
        await plane.create_tap_rule(TapRule(name="second"), "first")
        assert await names() == ["all", "second"]
        await plane.delete_tap_rule("second", validate_only=True)
        await plane.delete_tap_rule("second")
        assert await names() == ["all"]

    stage.run(body)


def test_processors_come_and_go(stage: Stage) -> None:
    async def body(kind: Given) -> None:
        for count in (3, 1, 2):
            pool = await kind.plane.set_processors(count)
            assert (pool.processors, len(pool.shares), sum(item.share for item in pool.shares)) == (count, count, 12 * MIB)
            assert [item.slot for item in await kind.plane.status()] == list(range(count))

    stage.run(body)


def test_zz_a_proxy_that_drains_takes_no_connections_and_no_processors(stage: Stage) -> None:
    """The last of its kind: there is no way back."""

    async def body(kind: Given) -> None:
        plane = kind.plane
        await kind.ids(3)
        for options in ({"wait": True}, {"timeout_ms": 5000, "wait": False}):
            with pytest.raises(InvalidArgumentError):
                await plane.drain(accept="until_stop", **options)
        assert plane.health().ready
        result = await plane.drain(wait=False)
        assert (result.closed, result.open, plane.health().ready, plane.health().draining) == (0, 3, False, True)
        assert [item.accepting for item in await plane.list_listeners()] == [True]
        result = await plane.drain(5000)
        assert (result.closed, result.open) == (3, 0)
        assert ((await plane.drain(5000)).closed, plane.health().ready, plane.health().alive) == (0, False, True)
        assert [item.accepting for item in await plane.list_listeners()] == [False]
        for count in (1, 3):
            with pytest.raises(FailedPreconditionError) as caught:
                await plane.set_processors(count)
            assert caught.value.reason == "DRAINING"

    stage.run(body)
