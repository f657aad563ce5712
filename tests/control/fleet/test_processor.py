import asyncio
import socket

import pytest

from framegate.control.errors import StartError, UnavailableError
from framegate.control.fleet.processor import Processor, Slot
from framegate.proxy.cells import CellLayout, CellWriter
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.server.link import Handover, send_handovers
from framegate.proxy.server.protocol import WIRE_VERSION, holders_request, list_request
from tests.fakes.fleet import START, MemoryLog, fleet_config
from tests.fakes.fleet import run_processor as run
from tests.fakes.scenario import run_by

LAYOUT = CellLayout.of(fleet_config(1))


@run_by(run)
async def test_a_processor_starts_answers_and_stops(processor: Processor, log: MemoryLog) -> None:
    await processor.start(START)
    assert processor.modules["fake"].endswith("processor.py")
    answer = await processor.request(list_request(after=0, limit=5, listener=None), 1000)
    assert answer["rows"] == []
    await processor.stop(5)
    assert processor.ended.result() == 0
    assert processor.kill_reason == ""


def test_a_processor_of_another_release_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for mode, said in (("older", f"version {WIRE_VERSION - 1}"), ("newer", f"version {WIRE_VERSION + 1}"), ("unversioned", "no version")):

        async def scenario(processor: Processor, log: MemoryLog, said: str = said) -> None:
            with pytest.raises(StartError, match=f"processor 0 could not start: it speaks {said} of the link, and control version {WIRE_VERSION}"):
                await processor.start(START)
            assert not processor.ready

        monkeypatch.setenv("FAKE_PROCESSOR", mode)
        run(scenario)


def test_an_answer_that_is_not_what_it_should_be_is_refused_with_the_name_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(processor: Processor, log: MemoryLog) -> None:
        await processor.start(START)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            handover = Handover(5, int(socket.AF_UNIX), "a", "unix:")
            assert send_handovers(processor.handover, [handover], [theirs.fileno()])
            ours.sendall(b"x")
            assert await asyncio.to_thread(ours.recv, 1) == b"x"
            with pytest.raises(
                UnavailableError, match=r"processor 0: the answer to holders cannot be read: result.rows\[0\].kind is missing"
            ) as caught:
                await processor.request(holders_request(5), 5000)
            assert caught.value.reason == "PROCESSOR_FAILED"
            assert len((await processor.request(list_request(after=0, limit=5, listener=None), 5000))["rows"]) == 1

    monkeypatch.setenv("FAKE_PROCESSOR", "misspelt")
    run(scenario)


@run_by(run)
async def test_a_request_to_a_dead_one_fails(processor: Processor, log: MemoryLog) -> None:
    await processor.start(START)
    processor.kill("test")
    with pytest.raises(UnavailableError):
        await processor.request(list_request(after=0, limit=5, listener=None), 5000)
    processor.kill("another word")
    assert processor.kill_reason == "test"


@run_by(run)
async def test_its_connections_are_booked_under_the_ids_that_it_gives_them(processor: Processor, log: MemoryLog) -> None:
    one, two, three = (Handover(number, socket.AF_INET, "a", f"192.0.2.1:{number}") for number in (1, 2, 3))
    processor.unbook(2)
    assert [format_connection_id(processor.book(item).number) for item in (one, two, three)] == ["0-7-1", "0-7-2", "0-7-3"]
    assert list(processor.open) == [1, 3]
    processor.unbook(1)
    processor.unbook(3)
    assert processor.open == {}


def test_a_slot_that_leaves_or_is_not_wanted_takes_no_connections() -> None:
    slot = Slot(0, LAYOUT)
    assert not slot.takes_connections
    slot.state = "running"
    assert slot.takes_connections
    slot.leaving = True
    assert (slot.takes_connections, slot.lives_on) == (False, False)
    slot.begin()
    slot.wanted = False
    assert (slot.takes_connections, slot.lives_on) == (False, False)
    slot.cells.close()


def test_a_heartbeat_of_another_generation_is_none() -> None:
    slot = Slot(0, LAYOUT)
    CellWriter(slot.cells.descriptor, LAYOUT).start(1, slot.next_generation() - 1, 5)
    assert slot.status().heartbeat_age_ms == -1
    assert (slot.status().state, slot.status().pid) == ("stopped", 0)
    slot.cells.close()
