"""framegate.control.service.relay: bytes pass both ways, no faster than they are taken, and both sides end together."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

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

        relay = Relay(listening, str(folder / "backend"), peers, known)
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
