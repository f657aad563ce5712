"""framegate.control.service.relay: bytes pass both ways, no faster than they are taken, and both sides end together."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from framegate.control.service import relay as service_relay
from framegate.control.service.peers import Peer, Peers
from framegate.control.service.relay import Relay
from framegate.control.v1.options_pb2 import Role

MIB = 1 << 20
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PEER = Peer(Role.ROLE_VIEW, {})


def run(folder: Path, body: Callable[[Callable[[], Awaitable[tuple[Streams, Streams]]], Relay, Peers], Awaitable[None]]) -> None:
    """Run a test with a relay; it gets a function that connects through it and returns the client's and the backend's streams."""

    async def main() -> None:
        peers, arrived = Peers(), asyncio.Queue[Streams]()
        opened: list[Streams] = []
        backend = await asyncio.start_unix_server(lambda *streams: arrived.put_nowait(streams), folder / "backend")
        listening = socket.socket(socket.AF_UNIX)
        listening.setblocking(False)
        listening.bind(str(folder / "front"))
        listening.listen()

        async def known(sock: socket.socket, transport: asyncio.Transport) -> Peer:
            return PEER

        async def connect() -> tuple[Streams, Streams]:
            front = await asyncio.open_unix_connection(folder / "front")
            front[1].write(b"early")
            back = await arrived.get()
            opened.extend((front, back))
            assert await back[0].readexactly(5) == b"early"
            return front, back

        async def path() -> str:
            return str(folder / "backend")

        relay = Relay(listening, path, peers, known)
        try:
            await asyncio.wait_for(body(connect, relay, peers), 20)
        finally:
            await relay.close()
            backend.close()
            for _, writer in opened:
                writer.close()
        assert peers._connections == {}

    asyncio.run(main())


def test_bytes_pass_both_ways_from_a_name_that_says_who_it_is(tmp_path: Path) -> None:
    async def body(connect: Callable[[], Awaitable[tuple[Streams, Streams]]], relay: Relay, peers: Peers) -> None:
        (reader, writer), (inner_reader, inner_writer) = await connect()
        name = inner_writer.get_extra_info("peername")
        assert peers.find(f"unix-abstract:{name[1:].decode()}") is PEER
        data = bytes(range(256)) * 16384
        for source, sink in ((writer, inner_reader), (inner_writer, reader)):
            source.write(data)
            assert await sink.readexactly(len(data)) == data
        inner_writer.write(b"the last")
        inner_writer.close()
        assert await reader.read() == b"the last", "what was written arrives, and then the end"
        (reader, writer), (inner_reader, _) = await connect()
        writer.close()
        assert await inner_reader.read() == b""

    run(tmp_path, body)


def test_whoever_sends_nothing_does_not_reach_the_backend_and_is_closed_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_relay, "FIRST_BYTES_S", 0.05)

    async def body(connect: Callable[[], Awaitable[tuple[Streams, Streams]]], relay: Relay, peers: Peers) -> None:
        gone, silent = [await asyncio.open_unix_connection(tmp_path / "front") for _ in range(2)]
        gone[1].close()
        assert await silent[0].read() == b""
        silent[1].close()
        _, (inner_reader, _) = await connect()  # the first that the backend has seen
        assert inner_reader._buffer == b""  # type: ignore[attr-defined]

    run(tmp_path, body)


def test_a_backend_that_cannot_be_started_closes_the_connection_and_the_next_one_asks_again(tmp_path: Path) -> None:
    async def main() -> None:
        answers: list[Exception | str] = [ConnectionAbortedError("no"), str(tmp_path / "backend")]

        async def path() -> str:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def known(sock: socket.socket, transport: asyncio.Transport) -> Peer:
            return PEER

        with socket.socket(socket.AF_UNIX) as listening:
            listening.setblocking(False)
            listening.bind(str(tmp_path / "front"))
            listening.listen()
            backend = await asyncio.start_unix_server(lambda _, writer: writer.close(), tmp_path / "backend")
            relay = Relay(listening, path, Peers(), known)
            for left in (1, 0):
                reader, writer = await asyncio.open_unix_connection(tmp_path / "front")
                writer.write(b"early")
                assert (await asyncio.wait_for(reader.read(), 20), len(answers)) == (b"", left)
                writer.close()
            await relay.close()
            backend.close()

    asyncio.run(main())


def test_a_side_that_is_not_read_stops_the_other(tmp_path: Path) -> None:
    async def body(connect: Callable[[], Awaitable[tuple[Streams, Streams]]], relay: Relay, peers: Peers) -> None:
        (_, writer), (inner_reader, _) = await connect()
        taken, block = 0, bytes(MIB)
        while True:
            writer.write(block)
            taken += MIB
            try:
                await asyncio.wait_for(writer.drain(), 0.2)
            except TimeoutError:
                break
        assert taken < 8 * MIB
        assert len(await inner_reader.readexactly(taken)) == taken

    run(tmp_path, body)


def test_nothing_is_read_of_a_connection_while_it_is_held_and_then_all_of_it(tmp_path: Path) -> None:
    async def body(connect: Callable[[], Awaitable[tuple[Streams, Streams]]], relay: Relay, peers: Peers) -> None:
        (_, writer), (inner_reader, inner_writer) = await connect()
        name = inner_writer.get_extra_info("peername")[1:].decode()
        taken, block = 0, bytes(MIB)
        with peers.held(name):
            while taken < 8 * MIB:
                writer.write(block)
                taken += MIB
                try:
                    await asyncio.wait_for(writer.drain(), 0.1)
                except TimeoutError:
                    break
            assert taken < 8 * MIB
            assert inner_reader._buffer == b""  # type: ignore[attr-defined]
        assert len(await inner_reader.readexactly(taken)) == taken

    run(tmp_path, body)


def test_the_end_of_the_relay_ends_its_connections_and_accepts_no_more(tmp_path: Path) -> None:
    async def body(connect: Callable[[], Awaitable[tuple[Streams, Streams]]], relay: Relay, peers: Peers) -> None:
        (reader, _), (inner_reader, _) = await connect()
        await relay.stop()
        try:
            await asyncio.open_unix_connection(tmp_path / "front")
        except ConnectionRefusedError:
            await relay.close()
        assert (await reader.read(), await inner_reader.read()) == (b"", b"")

    run(tmp_path, body)
