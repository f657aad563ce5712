"""What the gRPC service relies on, of the parts of steering: the real ones over real processors and the fakes of the service's tests allow and
refuse the same. One process serves all tests of a kind; each leaves it as it was.
"""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Final

import pytest

from framegate.control.errors import AlreadyExistsError, ControlError, EtagError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from framegate.control.events import Event
from framegate.control.fleet.processor import COMMAND
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.steering.brokers import Brokers
from framegate.control.steering.channels import Channels
from framegate.control.steering.drain import Drain
from framegate.control.steering.listeners import Listeners, Upstreams
from framegate.control.steering.pool import Pool
from framegate.control.steering.rows import Audit
from framegate.control.steering.state import State
from framegate.control.steering.steering import Parts, Steering
from framegate.control.steering.users import Users
from framegate.proxy.config.limits import LimitOverride, LimitsConfig, RateLimits
from framegate.proxy.config.model import LEAST_POOL, MIB, Forwarding, TapConfig, TapRule
from tests.fakes.conformance import Kind
from tests.fakes.fleet import Fleet, fleet_config
from tests.fakes.plane import (
    FakeAudit,
    FakeBrokers,
    FakeCertificates,
    FakeChannels,
    FakeDrain,
    FakeListeners,
    FakePlane,
    FakePool,
    FakeRotation,
    FakeUpstreams,
    FakeUsers,
    channel_row,
    closed_row,
)  # fmt: skip
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame

UNKNOWN = (3 << 57) + 5
ALL = TapRule(name="all")


class Given:
    """A plane with two processors, the listener ``a``, a pool of 12 MiB and a tap with the rule ``all``; ``connect`` opens a channel."""

    def __init__(self, plane: Parts, connect: Callable[[], Awaitable[None]]) -> None:
        self.plane = plane
        self.connect = connect

    async def ids(self, count: int) -> list[int]:
        for _ in range(count):
            await self.connect()
        rows, token = await self.plane.channels.page("a", 1000)
        assert token == ""
        while (self.plane.listeners.statuses())[0].connections != len(rows):  # the acceptor's thread counts after it has handed over
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
        yield Given(plane.parts, connect)
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
        made.steering.state.serving = True
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
                await self.kind.plane.channels.act("close", listener="a")
                await until_empty(self.kind.plane)

        self._runner.run(main())

    def close(self) -> None:
        self._runner.run(self._context.__aexit__(None, None, None))
        self._runner.close()


async def until_empty(plane: Parts) -> None:
    while (await plane.channels.page("a"))[0]:
        await asyncio.sleep(0.01)


INTERFACE: Final = (State, Audit, Channels, Pool, Drain, Listeners, Upstreams, Brokers, TlsStores, Rotation, Users)
FAKES: Final = (
    FakePlane, FakeAudit, FakeChannels, FakePool, FakeDrain, FakeListeners, FakeUpstreams, FakeBrokers, FakeCertificates, FakeRotation, FakeUsers
)  # fmt: skip
PROVES: Final = INTERFACE + FAKES
KINDS: Final = {"fake": Kind(FakePlane, fake), "real": Kind(Steering, real)}


def on_stage(test: Callable[[Given], Awaitable[None]]) -> Callable[[Stage], None]:
    """Make a test of a coroutine function, which is run on a stage."""

    def run(stage: Stage) -> None:
        stage.run(test)

    return run


@pytest.fixture(scope="module", params=KINDS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(KINDS[request.param].make)
    yield made
    made.close()


@on_stage
async def test_what_there_is(kind: Given) -> None:
    plane = kind.plane
    assert [(item.listener, item.max_receive_size) for item in plane.limits.get()] == [("a", MIB)]
    pool = plane.pool.status()
    assert (pool.tap_limit, dict(pool.guaranteed), [item.usage for item in pool.shares][2:]) == (16 * MIB, {}, [])
    assert [(item.rule, item.expired, item.stops) for item in plane.taps.rules()] == [(ALL, False, ())]
    assert await plane.channels.top_holders(100) == []
    assert (pool.size, pool.processors, [(item.slot, item.share) for item in pool.shares]) == (12 * MIB, 2, [(0, 6 * MIB), (1, 6 * MIB)])
    assert [(item.slot, item.state) for item in plane.state.processor_statuses()] == [(0, "running"), (1, "running")]
    (listener,) = plane.listeners.statuses()
    assert (listener.name, listener.upstream, listener.accepting, listener.max_receive_size) == ("a", "u", True, MIB)
    assert listener.forwarding == Forwarding()
    assert [item.name for item in await plane.upstreams.statuses()] == ["u"]
    assert await plane.brokers.statuses() == await plane.brokers.statuses("u") == []
    with pytest.raises(NotFoundError):
        await plane.brokers.statuses("none")
    assert plane.state.handler_processes() == []
    assert (plane.certificates.statuses(plane.rotation), await plane.rotation.reload()) == ([], []), "nothing here speaks TLS"
    assert (plane.state.health().started, plane.state.health().alive, plane.state.health().ready) == (True, True, True)
    assert [slot for slot, _ in plane.state.cells] == [0, 1]
    assert plane.state.config.node == "test"
    assert plane.state.started_ns > 10**18
    assert plane.state.build.version


@on_stage
async def test_channels_are_listed_in_pages_and_described(kind: Given) -> None:
    ids = await kind.ids(5)
    seen: list[int] = []
    token = ""
    while True:
        rows, token = await kind.plane.channels.page(None, 2, token)
        seen += [row["id"] for row in rows]
        if not token:
            break
    assert seen == ids == sorted(ids)
    row = await kind.plane.channels.describe(ids[0])
    assert (row["id"], row["listener"], row["upstream"], row["muted"]) == (ids[0], "a", "u" if row["upstream"] == "u" else "brokers", [])
    assert set(channel_row("0-1-1")) <= set(row)


REFUSALS: list[tuple[str, Callable[[Parts], Any], type[ControlError]]] = [
    ("list of an unknown listener", lambda plane: plane.channels.page("none"), NotFoundError),
    ("negative page", lambda plane: plane.channels.page(None, -1), InvalidArgumentError),
    ("token of nobody", lambda plane: plane.channels.page(None, 5, "x"), InvalidArgumentError),
    ("unknown channel", lambda plane: plane.channels.describe(UNKNOWN), NotFoundError),
    ("an event that is none", lambda plane: plane.log.change("error", {"none": False}), InvalidArgumentError),
    ("no audit rows", lambda plane: plane.log.change("error", {"audit": False}), InvalidArgumentError),
    ("mute of an unknown channel", lambda plane: plane.channels.act("mute", [UNKNOWN]), NotFoundError),
    ("unmute of an unknown channel", lambda plane: plane.channels.act("unmute", [UNKNOWN]), NotFoundError),
    ("close of an unknown channel", lambda plane: plane.channels.act("close", [UNKNOWN]), NotFoundError),
    ("mute of an unknown listener", lambda plane: plane.channels.act("mute", listener="none"), NotFoundError),
    ("mute of nothing", lambda plane: plane.channels.act("mute"), InvalidArgumentError),
    ("mute of both", lambda plane: plane.channels.act("mute", [UNKNOWN], "a"), InvalidArgumentError),
    ("limits of an unknown listener", lambda plane: plane.limits.get("none"), NotFoundError),
    ("limit of an unknown listener", lambda plane: plane.limits.change("none", 5), NotFoundError),
    ("limit of nothing", lambda plane: plane.limits.change("a", 0), InvalidArgumentError),
    ("limit above the header's", lambda plane: plane.limits.change("a", 2**31), InvalidArgumentError),
    ("limit above the share", lambda plane: plane.limits.change("a", 6 * MIB + 1), FailedPreconditionError),
    ("limit of no change", lambda plane: plane.limits.change("a"), InvalidArgumentError),
    ("quota out of range", lambda plane: plane.limits.change("a", quotas={"connections": -1}), InvalidArgumentError),
    ("quota that is none", lambda plane: plane.limits.change("a", quotas={"colour": 1}), InvalidArgumentError),
    ("quotas of the node without a change", lambda plane: plane.limits.change_node({}), InvalidArgumentError),
    ("quota of the node out of range", lambda plane: plane.limits.change_node({"connections": -1}), InvalidArgumentError),
    ("quota of addresses out of range", lambda plane: plane.limits.change_node({"per_address": {"connections": -1}}), InvalidArgumentError),
    ("quotas of no network", lambda plane: plane.limits.change_node({"overrides": (LimitOverride(network="x"),)}), InvalidArgumentError),
    ("another protected listener", lambda plane: plane.limits.change_node({"protected_listener": "a"}), InvalidArgumentError),
    ("quotas that are others", lambda plane: plane.limits.change_node({"connections": 1}, "beef"), EtagError),
    ("nobody of those who hold most", lambda plane: plane.channels.top_holders(0), InvalidArgumentError),
    ("too many of those who hold most", lambda plane: plane.channels.top_holders(101), InvalidArgumentError),
    ("pool of nothing", lambda plane: plane.pool.set_size(0), InvalidArgumentError),
    ("pool below the least", lambda plane: plane.pool.set_size(LEAST_POOL - 1), InvalidArgumentError),
    ("pool above the most", lambda plane: plane.pool.set_size((1 << 50) + 1), InvalidArgumentError),
    ("drain above the most", lambda plane: plane.drain.run(3_600_001), InvalidArgumentError),
    ("pool below the frames", lambda plane: plane.pool.set_size(2 * MIB - 1), FailedPreconditionError),
    ("no processors", lambda plane: plane.pool.set_processors(0), InvalidArgumentError),
    ("too many processors", lambda plane: plane.pool.set_processors(65), InvalidArgumentError),
    ("more processors than the pool allows", lambda plane: plane.pool.set_processors(13), FailedPreconditionError),
    ("tap rule with a name that is taken", lambda plane: plane.taps.create(ALL), AlreadyExistsError),
    ("tap rule before nobody", lambda plane: plane.taps.create(TapRule(name="x"), "none"), NotFoundError),
    ("tap rule of an unknown listener", lambda plane: plane.taps.create(TapRule(name="x", listeners=("none",))), InvalidArgumentError),
    ("tap rule of no network", lambda plane: plane.taps.update("all", {"networks": ("10.0.0.1/8",)}), InvalidArgumentError),
    ("tap rule out of range", lambda plane: plane.taps.update("all", {"sample_frames": 2.0}), InvalidArgumentError),
    ("change of no tap rule", lambda plane: plane.taps.update("none", {}), NotFoundError),
    ("change of another tap rule", lambda plane: plane.taps.update("all", {}, None, "beef"), EtagError),
    ("end of no tap rule", lambda plane: plane.taps.delete("none"), NotFoundError),
    ("end of another tap rule", lambda plane: plane.taps.delete("all", "beef"), EtagError),
    ("users of an unknown listener", lambda plane: plane.users.list("none"), NotFoundError),
    ("users of a listener without", lambda plane: plane.users.list("a"), FailedPreconditionError),
    ("a user of an unknown listener", lambda plane: plane.users.put("none", "alice", {}, create=True, replace=False), NotFoundError),
    ("a user of a listener without", lambda plane: plane.users.put("a", "alice", {}, create=False, replace=True), FailedPreconditionError),
    ("end of a user of a listener without", lambda plane: plane.users.delete("a", "alice"), FailedPreconditionError),
    ("drain in the past", lambda plane: plane.drain.run(-1), InvalidArgumentError),
]


@pytest.mark.parametrize(("call", "error"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_what_is_refused_changes_nothing(stage: Stage, call: Callable[[Parts], Any], error: type[ControlError]) -> None:
    async def body(kind: Given) -> None:
        with pytest.raises(error):
            await call(kind.plane)
        assert (kind.plane.limits.get("a"))[0].max_receive_size == MIB
        assert ((kind.plane.pool.status()).size, (kind.plane.pool.status()).processors) == (12 * MIB, 2)
        assert [item.rule for item in kind.plane.taps.rules()] == [ALL]
        assert kind.plane.state.health().ready

    stage.run(body)


@on_stage
async def test_channels_are_muted_unmuted_and_closed(kind: Given) -> None:
    plane = kind.plane
    subscription = plane.events.subscribe(("closed",))
    ids = await kind.ids(3)
    outcome = await plane.channels.act("mute", [*ids[:2], UNKNOWN], reason="test")
    assert (sorted(outcome.affected), outcome.missing) == (ids[:2], (UNKNOWN,))
    rows, _ = await plane.channels.page()
    assert [row["muted"] for row in rows] == [["admin"], ["admin"], []]
    assert [row["mute_reason"] for row in rows] == ["test", "test", ""]
    assert sorted((await plane.channels.act("unmute", listener="a")).affected) == ids
    assert (await plane.channels.act("close", ids[:1], reason="enough")).affected == (ids[0],)
    event = await anext(subscription)
    assert isinstance(event, Event)
    row = event.row
    assert (row["event"], row["id"], row["cause"], row["detail"], row["listener"]) == ("closed", ids[0], "admin", "enough", "a")
    assert set(row) == set(closed_row("0-1-1", "admin"))
    subscription.close()
    assert [item async for item in subscription] == []


@on_stage
async def test_events_are_numbered_and_who_comes_back_goes_on_behind_the_last_it_saw(kind: Given) -> None:
    plane = kind.plane
    audits = plane.events.subscribe(("audit",))
    for who in ("ada", "bob"):
        plane.audit.reserve()
        plane.audit.publish({"event": "audit", "who": who})
    first, second = await anext(audits), await anext(audits)
    assert isinstance(first, Event)
    assert isinstance(second, Event)
    assert (first.row["who"], second.row["who"], second.sequence, first.reserved) == ("ada", "bob", first.sequence + 1, True)
    assert first.sequence > audits.after
    assert plane.events.subscribe(("audit",), after=first.sequence).take() == [second]
    assert plane.events.subscribe(("closed",), after=audits.after).take() == []
    with pytest.raises(FailedPreconditionError) as caught:
        plane.events.subscribe(after=second.sequence + 1)
    assert caught.value.reason == "EVENTS_UNKNOWN"
    audits.close()


@on_stage
async def test_limits_and_pool_are_what_they_were_set_to(kind: Given) -> None:
    plane = kind.plane
    assert (await plane.limits.change("a", 2 * MIB)).max_receive_size == 2 * MIB
    assert (plane.limits.get("a"))[0].max_receive_size == 2 * MIB
    pool = await plane.pool.set_size(9 * MIB + 1)
    assert (pool.size, [item.share for item in pool.shares]) == (9 * MIB + 1, [9 * MIB // 2 + 1, 9 * MIB // 2])
    assert (await plane.pool.set_size(12 * MIB)) == plane.pool.status()
    assert (await plane.limits.change("a", MIB)).max_receive_size == MIB
    assert (await plane.limits.change("a", quotas={"request_bytes_rate": 5})).quotas == RateLimits(request_bytes_rate=5)
    assert (await plane.limits.change("a", MIB, {"request_bytes_rate": 0})).quotas == RateLimits()
    overrides = (LimitOverride(network="192.0.2.0/24", access="deny"),)
    node = await plane.limits.change_node({"request_frames_rate": 4, "per_address": {"connections": 9}, "overrides": overrides})
    assert node.quotas == LimitsConfig(request_frames_rate=4, per_address=RateLimits(connections=9), overrides=overrides)
    assert node == plane.limits.get_node()
    back = {"request_frames_rate": 0, "per_address": {"connections": 0}, "overrides": ()}
    assert (await plane.limits.change_node(back, node.etag)).quotas == LimitsConfig()


@on_stage
async def test_the_log_is_what_it_was_set_to(kind: Given) -> None:
    plane = kind.plane
    before = plane.log.status()
    assert (before.format, before.level, before.silenced) == ("json", "info", ())
    changed = plane.log.change("warning", {"closed": False, "access": False})
    assert (changed.level, changed.silenced) == ("warning", ("access", "closed"))
    assert plane.log.status() == changed
    assert plane.state.config.log.level == "warning"
    assert (plane.log.change(events={"closed": True, "access": True})).level == "warning"
    assert plane.log.change("info") == before
    assert plane.state.config.log.level == "info"


@on_stage
async def test_tap_rules_are_what_they_were_set_to(kind: Given) -> None:
    plane = kind.plane

    async def names() -> list[str]:
        return [item.rule.name for item in plane.taps.rules()]

    await kind.ids(2)
    first = await plane.taps.create(TapRule(name="first", listeners=("a",), capture="hash"), "all")
    assert (first.rule.capture, await names()) == ("hash", ["first", "all"])
    assert (await plane.taps.update("first", {"capture": "lengths"}, validate_only=True)).rule.capture == "lengths"
    assert (plane.taps.rules())[0] == first
    changed = await plane.taps.update("first", {"capture": "lengths"}, None, first.etag)
    assert ((plane.taps.rules())[0], changed.rule.listeners, await names()) == (changed, ("a",), ["first", "all"])
    with pytest.raises(EtagError):
        await plane.taps.update("first", {"capture": "full"}, None, first.etag)
    await plane.taps.update("first", {}, "")
    assert await names() == ["all", "first"]
    await plane.taps.update("first", {"expires_ns": 5})
    assert [item.expired for item in plane.taps.rules()] == [False, True]
    await plane.taps.create(TapRule(name="second"), "first")
    assert await names() == ["all", "second"]
    await plane.taps.delete("second", validate_only=True)
    await plane.taps.delete("second")
    assert await names() == ["all"]


@on_stage
async def test_processors_come_and_go(kind: Given) -> None:
    for count in (3, 1, 2):
        pool = await kind.plane.pool.set_processors(count)
        assert (pool.processors, len(pool.shares), sum(item.share for item in pool.shares)) == (count, count, 12 * MIB)
        assert [item.slot for item in kind.plane.state.processor_statuses()] == list(range(count))


@on_stage
async def test_zz_a_proxy_that_drains_takes_no_connections_and_no_processors(kind: Given) -> None:
    """The last of its kind: there is no way back."""
    plane = kind.plane
    await kind.ids(3)
    for options in ({"wait": True}, {"timeout_ms": 5000, "wait": False}):
        with pytest.raises(InvalidArgumentError):
            await plane.drain.run(accept="until_stop", **options)
    assert plane.state.health().ready
    result = await plane.drain.run(wait=False)
    assert (result.closed, result.open, plane.state.health().ready, plane.state.health().draining) == (0, 3, False, True)
    assert [item.accepting for item in plane.listeners.statuses()] == [True]
    result = await plane.drain.run(5000)
    assert (result.closed, result.open) == (3, 0)
    assert ((await plane.drain.run(5000)).closed, plane.state.health().ready, plane.state.health().alive) == (0, False, True)
    assert [item.accepting for item in plane.listeners.statuses()] == [False]
    for count in (1, 3):
        with pytest.raises(FailedPreconditionError) as caught:
            await plane.pool.set_processors(count)
        assert caught.value.reason == "DRAINING"
