"""gRPC's messages as its library writes them: what a real call put into HTTP/2's DATA frames, taken off the wire between client and server."""

import contextlib
import socket
import threading
from collections.abc import Sequence
from concurrent import futures
from typing import Final

import grpc

from tests.fakes.upstream import ScriptedUpstream

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD: Final = 9
DATA: Final = 0
PADDED: Final = 0x8
METHOD: Final = "/tests.Peers/Exchange"


def call(requests: Sequence[bytes], answers: Sequence[bytes], compression: grpc.Compression = grpc.Compression.NoCompression) -> tuple[bytes, bytes]:
    """Make one call with a stream of messages each way.

    Args:
        requests: messages of the client, serialized.
        answers: of the server.
        compression: of those that the library finds worth it.

    Returns:
        The bytes of the messages of the client, and of those of the server, each message as gRPC frames it.
    """

    def exchange(received: object, context: grpc.ServicerContext) -> object:
        assert list(received) == list(requests)  # type: ignore[call-overload]
        return iter(answers)

    server = grpc.server(futures.ThreadPoolExecutor(2), compression=compression)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tests.Peers", {"Exchange": grpc.stream_stream_rpc_method_handler(exchange)}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sent, received = bytearray(), bytearray()
    between = ScriptedUpstream(lambda sock: _record(sock, port, sent, received))
    try:
        with grpc.insecure_channel(between.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            got = channel.stream_stream(METHOD)(iter(requests), compression=compression, timeout=10)
            assert list(got) == list(answers)
    finally:
        between.close()
        server.stop(None).wait()
    assert sent.startswith(PREFACE)
    return _data(bytes(sent[len(PREFACE) :])), _data(bytes(received))


def _record(client: socket.socket, port: int, sent: bytearray, received: bytearray) -> None:

    def relay(source: socket.socket, target: socket.socket, seen: bytearray) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                seen += chunk
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)

    with socket.create_connection(("127.0.0.1", port), timeout=10) as server:
        back = threading.Thread(target=relay, args=(server, client, received))
        back.start()
        relay(client, server, sent)
        back.join()


def _data(stream: bytes) -> bytes:
    """What the DATA frames of an HTTP/2 stream carry (RFC 9113, sections 4.1 and 6.1)."""
    found = bytearray()
    position = 0
    while position + FRAME_HEAD <= len(stream):
        size = int.from_bytes(stream[position : position + 3], "big")
        kind, flags = stream[position + 3], stream[position + 4]
        position += FRAME_HEAD
        if kind == DATA:
            assert not flags & PADDED, "gRPC's library does not pad"
            found += stream[position : position + size]
        position += size
    return bytes(found)
