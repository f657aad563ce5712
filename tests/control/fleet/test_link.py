import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from framegate.control.errors import UnavailableError
from framegate.control.fleet.link import Link
from framegate.proxy.server.link import LinkReader, encode
from framegate.proxy.server.protocol import commit_request, drain_request, evict_request, prepare_request
from tests.fakes.scenario import run_by

A = evict_request(1, None)
B = drain_request(5)


def run(scenario: Callable[[Link, socket.socket, list[Any]], Awaitable[None]]) -> None:
    """Gives the scenario a link, the processor's end of its socket, and the list of notices and ends that the link reported."""

    async def main() -> None:
        told: list[Any] = []
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        link = Link(ours, told.append, told.append)
        try:
            async with asyncio.timeout(5):
                await scenario(link, theirs, told)
        finally:
            link.close()
            theirs.close()

    asyncio.run(main())


async def receive(theirs: socket.socket, reader: LinkReader) -> list[dict[str, Any]]:
    return reader.feed(await asyncio.get_running_loop().sock_recv(theirs, 1 << 20))


@run_by(run)
async def test_answers_find_their_requests_in_any_order(link: Link, theirs: socket.socket, told: list[Any]) -> None:
    reader = LinkReader()
    one = asyncio.create_task(link.request(A, 1000))
    two = asyncio.create_task(link.request(B, 1000))
    asked: list[dict[str, Any]] = []
    while len(asked) < 2:
        asked += await receive(theirs, reader)
    for message in reversed(asked):
        theirs.send(encode({"type": "result", "id": message["id"], **({"affected": [7]} if message["type"] == "evict" else {})}))
    assert [await one, await two] == [{"type": "result", "id": 1, "affected": [7]}, {"type": "result", "id": 2}]
    assert told == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"type": "result"}, "prepare cannot be read: result: result is no answer"),
        ({"type": "refused"}, "prepare cannot be read: refused.reason is missing"),
        ({"type": "refused", "reason": 5}, "prepare cannot be read: refused.reason must be str, not int"),
        ({"type": "error", "error": None}, "prepare cannot be read: error.error must be str, not null"),
        ({"type": "error", "error": "no"}, "no"),
    ],
)
@run_by(run)
async def test_an_answer_that_cannot_be_read_is_an_error_reply(
    link: Link, theirs: socket.socket, told: list[Any], *, answer: dict[str, Any], text: str
) -> None:
    asked, next_one = link.ask(prepare_request({})), link.ask(drain_request(5))
    theirs.send(encode({**answer, "id": 1}) + encode({"type": "result", "id": 2}))
    said = await asked
    assert said["type"] == "error"
    assert said["error"].endswith(text)
    assert await next_one == {"type": "result", "id": 2}
    assert told == []


@run_by(run)
async def test_a_cancelled_request_leaves_nothing_behind(link: Link, theirs: socket.socket, told: list[Any]) -> None:
    answer = link.ask(prepare_request({}), link.next_id())
    answer.cancel()
    await asyncio.sleep(0)
    assert link._waiting == {}
    again = link.ask(commit_request(), 1)  # the same number, in a second step
    theirs.send(encode({"type": "committed", "id": 1}))
    assert (await again)["type"] == "committed"
    reader = LinkReader()
    asked = await receive(theirs, reader)
    assert [(message["type"], message["id"]) for message in asked] == [("prepare", 1), ("commit", 1)]
    link.close()
    with pytest.raises(UnavailableError) as caught:
        await link.ask(B)
    assert caught.value.reason == "PROCESSOR_GONE"


@run_by(run)
async def test_the_end_of_the_socket_fails_every_open_request_and_is_reported_once(link: Link, theirs: socket.socket, told: list[Any]) -> None:
    request = asyncio.create_task(link.request(A, 1000))
    await asyncio.sleep(0)
    theirs.close()
    with pytest.raises(UnavailableError) as caught:
        await request
    assert caught.value.reason == "PROCESSOR_GONE"
    assert not link.open
    link.post({"type": "nobody hears"})
    with pytest.raises(UnavailableError):
        await link.request(B, 1000)
    assert len(told) == 1


@run_by(run)
async def test_a_processor_that_does_not_read_does_not_block_and_gets_all_messages_later(link: Link, theirs: socket.socket, told: list[Any]) -> None:
    text = "x" * 100_000
    for number in range(20):
        link.post({"type": "a", "number": number, "text": text})
    reader = LinkReader()
    got: list[int] = []
    while len(got) < 20:
        got += [message["number"] for message in await receive(theirs, reader)]
    assert got == list(range(20))


@run_by(run)
async def test_a_link_out_of_step_ends(link: Link, theirs: socket.socket, told: list[Any]) -> None:
    theirs.send(b"\xff\xff\xff\xff")
    while link.open:
        await asyncio.sleep(0)
    (reason,) = told
    assert "out of step" in reason
