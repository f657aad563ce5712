"""What the gRPC service relies on, of the parts of steering that its tests fake: the real ones over real processors and the fakes say and refuse the
same.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import pytest

from framegate.control.errors import ControlError, FailedPreconditionError, NotFoundError
from framegate.control.events import Event
from framegate.control.fleet.processor import COMMAND
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.steering.brokers import Brokers
from framegate.control.steering.rows import Audit
from framegate.control.steering.state import State
from framegate.control.steering.steering import Parts, Steering
from framegate.control.steering.users import Users
from framegate.proxy.config.model import MIB, TapConfig, TapRule
from tests.fakes.conformance import Kind
from tests.fakes.fleet import Fleet, fleet_config
from tests.fakes.plane import FakeAudit, FakeBrokers, FakeCertificates, FakePlane, FakeRotation, FakeUsers

ALL = TapRule(name="all")


@contextlib.asynccontextmanager
async def fake() -> AsyncIterator[Parts]:
    plane = FakePlane(fleet_config(2, TapConfig(directory="/nowhere", rules=(ALL,))))
    try:
        yield plane.parts
    finally:
        plane.close()


@contextlib.asynccontextmanager
async def real() -> AsyncIterator[Parts]:
    with tempfile.TemporaryDirectory() as folder:
        made = Fleet(fleet_config(2, TapConfig(directory=folder, rules=(ALL,))), command=COMMAND)
        try:
            await made.supervisor.start_slots(range(2))
            made.acceptor.start()
            made.steering.state.serving = True
            yield made.steering
        finally:
            await made.close()


INTERFACE: Final = (Brokers, State, Audit, TlsStores, Rotation, Users)
FAKES: Final = (FakeBrokers, FakePlane, FakeAudit, FakeCertificates, FakeRotation, FakeUsers)
PROVES: Final = INTERFACE + FAKES
KINDS: Final = {"fake": Kind(FakePlane, fake), "real": Kind(Steering, real)}


def on_each(test: Callable[[Parts], Awaitable[None]]) -> Callable[[str], None]:
    """Make a test of a coroutine function, which is run on the parts of each kind."""

    @pytest.mark.parametrize("kind", KINDS)
    def run(kind: str) -> None:
        async def main() -> None:
            async with asyncio.timeout(20), KINDS[kind].make() as parts:
                await test(parts)

        asyncio.run(main())

    return run


@on_each
async def test_what_there_is_before_and_in_a_drain(parts: Parts) -> None:
    assert [(item.rule, item.expired, item.stops) for item in parts.taps.rules()] == [(ALL, False, ())]
    assert [(item.listener, item.max_receive_size) for item in parts.limits.get()] == [("a", MIB)]
    assert parts.state.handler_processes() == []
    assert await parts.brokers.statuses() == await parts.brokers.statuses("u") == []
    with pytest.raises(NotFoundError):
        await parts.brokers.statuses("none")
    assert (parts.certificates.statuses(parts.rotation), await parts.rotation.reload()) == ([], []), "nothing here speaks TLS"
    health = parts.state.health()
    assert (health.started, health.alive, health.ready, health.draining) == (True, True, True, False)
    assert [slot for slot, _ in parts.state.cells] == [0, 1]
    assert parts.state.config.node == "test"
    assert parts.state.started_ns > 10**18
    assert parts.state.build.version
    for count in (3, 1, 2):
        await parts.pool.set_processors(count)
        assert [(item.slot, item.state) for item in parts.state.processor_statuses()] == [(slot, "running") for slot in range(count)]
    await parts.drain.run(5000)
    health = parts.state.health()
    assert (health.alive, health.ready, health.draining) == (True, False, True)


@on_each
async def test_users_of_unknown_listeners_and_of_those_without_a_file_are_refused(parts: Parts) -> None:
    refused: list[tuple[Awaitable[object], type[ControlError]]] = [
        (parts.users.list("none"), NotFoundError),
        (parts.users.list("a"), FailedPreconditionError),
        (parts.users.put("none", "alice", {}, create=True, replace=False), NotFoundError),
        (parts.users.put("a", "alice", {}, create=False, replace=True), FailedPreconditionError),
        (parts.users.delete("a", "alice"), FailedPreconditionError),
    ]
    for call, error in refused:
        with pytest.raises(error):
            await call


@on_each
async def test_audit_rows_are_numbered_and_who_comes_back_goes_on_behind_the_last_it_saw(parts: Parts) -> None:
    audits = parts.events.subscribe(("audit",))
    for who in ("ada", "bob"):
        parts.audit.publish({"event": "audit", "who": who}, await parts.audit.reserve())
    first, second = await anext(audits), await anext(audits)
    assert isinstance(first, Event)
    assert isinstance(second, Event)
    assert (first.row["who"], second.row["who"], second.sequence, first.reserved) == ("ada", "bob", first.sequence + 1, True)
    assert parts.events.subscribe(("audit",), after=first.sequence).take() == [second]
    with pytest.raises(FailedPreconditionError) as caught:
        parts.events.subscribe(after=second.sequence + 1)
    assert caught.value.reason == "EVENTS_UNKNOWN"
    audits.close()
