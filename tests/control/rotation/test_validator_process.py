"""The process that judges certificates stays, and whatever becomes of it, the next question is answered."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from framegate.control.fleet.child import Reaper
from framegate.control.rotation.questions import serve
from framegate.control.rotation.validator_process import ValidatorProcess
from framegate.proxy.config.model import MIB, to_wire
from tests.fakes.fleet import fleet_config
from tests.fakes.scenario import run_by

NOTHING: dict[str, Any] = {"refusals": {}, "certificates": {}, "revoked": {}}
QUESTION: dict[str, Any] = {"config": to_wire(fleet_config(1)), "stores": {}}
# What stands in for the judge: it answers with its question; a number makes it end so, or hang, or take memory.
ECHO = """
import json, sys, time
kept = []
while len(size := sys.stdin.buffer.read(4)) == 4:
    asked = json.loads(sys.stdin.buffer.read(int.from_bytes(size, "big")))
    if "end" in asked:
        sys.exit(asked["end"])
    if "hang" in asked:
        time.sleep(100)
    kept.append(b"x" * asked.get("take", 0))
    told = json.dumps(asked).encode()
    sys.stdout.buffer.write(len(told).to_bytes(4, "big") + told)
    sys.stdout.buffer.flush()
"""


def run(scenario: Callable[[ValidatorProcess], Awaitable[None]], *command: str, **options: Any) -> None:
    async def main() -> None:
        reaper = Reaper()
        judge = ValidatorProcess(reaper, command, **options) if command else ValidatorProcess(reaper, **options)
        try:
            async with asyncio.timeout(30):
                await scenario(judge)
                await judge.close()
                assert judge.pid is None
                while reaper._watched:  # one that was given up is killed, and not waited for
                    await asyncio.sleep(0.01)
        finally:
            reaper.close()

    asyncio.run(main())


def echo(scenario: Callable[[ValidatorProcess], Awaitable[None]], **options: Any) -> None:
    run(scenario, sys.executable, "-c", ECHO, **options)


async def gone(pid: int | None) -> None:
    assert pid is not None
    while os.path.exists(f"/proc/{pid}"):
        await asyncio.sleep(0.01)


@pytest.mark.slow
@run_by(run)
async def test_two_judgements_are_of_one_process(judge: ValidatorProcess) -> None:
    assert judge.pid is None
    assert await judge.ask(QUESTION) == NOTHING
    first = judge.pid
    assert await judge.ask(QUESTION) == NOTHING
    assert judge.pid == first is not None
    os.kill(first, signal.SIGKILL)
    await gone(first)
    assert await judge.ask(QUESTION) == NOTHING
    assert judge.pid not in (None, first)


def test_one_that_is_not_asked_for_a_while_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("rb") as questions, theirs.makefile("wb") as answers:
        data = json.dumps(QUESTION).encode()
        ours.sendall(len(data).to_bytes(4, "big") + data)
        serve(questions, answers, idle_s=0)
        size = int.from_bytes(ours.recv(4), "big")
        assert json.loads(ours.recv(size, socket.MSG_WAITALL)) == NOTHING


@run_by(echo)
async def test_one_that_has_ended_unnoticed_costs_nobody_an_answer(judge: ValidatorProcess) -> None:
    await judge.ask({})
    pid = judge.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert await judge.ask({"a": 1}) == {"a": 1}
    assert judge.pid not in (None, pid)


@run_by(echo)
async def test_large_questions_and_answers_pass(judge: ValidatorProcess) -> None:
    for size in (0, 1, MIB):
        asked = {"text": "é" * size}
        assert await judge.ask(asked) == asked


@run_by(echo)
async def test_one_that_ends_instead_of_answering_is_told_and_the_next_question_is_answered(judge: ValidatorProcess) -> None:
    for _ in range(2):  # once there is none before, and once there is
        with pytest.raises(RuntimeError, match="ended with 3"):
            await judge.ask({"end": 3})
        assert await judge.ask({"a": 1}) == {"a": 1}


@run_by(echo)
async def test_one_that_hangs_is_given_up_in_time_and_the_next_question_is_answered(judge: ValidatorProcess) -> None:
    await judge.ask({})
    judge._patience_s = 0.05  # type: ignore[misc]
    with pytest.raises(TimeoutError):
        await judge.ask({"hang": 1})
    judge._patience_s = 30.0  # type: ignore[misc]
    assert await judge.ask({"a": 1}) == {"a": 1}, "not the answer to the question before"


@run_by(echo)
async def test_nobody_gets_the_answer_to_a_question_that_was_given_up(judge: ValidatorProcess) -> None:
    asking = asyncio.create_task(judge.ask({"hang": 1}))
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await judge.ask({"a": 1}) == {"a": 1}


@run_by(echo, kept=48 * MIB)
async def test_one_that_has_grown_is_not_asked_again(judge: ValidatorProcess) -> None:
    await judge.ask({"take": MIB})
    first = judge.pid
    assert await judge.ask({"take": 64 * MIB}) == {"take": 64 * MIB}
    assert await judge.ask({}) == {}
    assert judge.pid != first
    await gone(first)


@run_by(run, "/none")
async def test_what_cannot_be_started_is_said(judge: ValidatorProcess) -> None:
    with pytest.raises(FileNotFoundError):
        await judge.ask({})


@run_by(echo)
async def test_it_goes_when_control_is_gone(judge: ValidatorProcess) -> None:
    await judge.ask({})
    pid, running = judge.pid, judge._running
    assert running is not None
    running._socket.close()
    await gone(pid)
