"""gRPC's messages, as its own library wrote them, through whole proxies as opaque frames; HTTP/2, which carries them in calls, is not spoken."""

import contextlib
import gzip
import socket
import threading
from collections.abc import Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.protobuf import struct_pb2

from tests.fakes.framegate import Framegate
from tests.fakes.tap_read import read_frames
from tests.fakes.upstream import ScriptedUpstream, read_exactly

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD: Final = 9
DATA: Final = 0
PADDED: Final = 0x8
METHOD: Final = "/tests.Peers/Exchange"


def call(requests: Sequence[bytes], answers: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Make one real call with a stream of serialized messages each way; those that are worth it are compressed.

    Returns:
        What client and server put into HTTP/2's DATA frames: their messages as gRPC's library frames them.
    """

    def exchange(received: object, context: grpc.ServicerContext) -> object:
        assert list(received) == list(requests)  # type: ignore[call-overload]
        return iter(answers)

    server = grpc.server(futures.ThreadPoolExecutor(2), compression=grpc.Compression.Gzip)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("tests.Peers", {"Exchange": grpc.stream_stream_rpc_method_handler(exchange)}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sent, received = bytearray(), bytearray()
    with (
        ScriptedUpstream(lambda sock: _record(sock, port, sent, received)) as between,
        grpc.insecure_channel(between.address, options=[("grpc.enable_http_proxy", 0)]) as channel,
    ):
        got = channel.stream_stream(METHOD)(iter(requests), compression=grpc.Compression.Gzip, timeout=10)
        assert list(got) == list(answers)
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


pytestmark = pytest.mark.slow


def config_of(upstream: ScriptedUpstream, **other: Any) -> dict[str, Any]:
    common = {"framing": "grpc_message"}
    return {
        "listeners": [{"name": "calls", "address": "127.0.0.1:0", "upstream": "server", "max_receive_size": "4MiB", **common}],
        "upstreams": [{"name": "server", "endpoints": [upstream.address], **common}],
        **other,
    }


def messages(word: str) -> list[struct_pb2.Struct]:
    """Empty, small, and larger than what one read gives."""
    made = [struct_pb2.Struct() for _ in range(12)]
    for number, message in enumerate(made):
        message.update({f"{word} {index}": str(index) * 40 * number**3 for index in range(number)})
    return made


def serialized(made: list[struct_pb2.Struct]) -> list[bytes]:
    return [message.SerializeToString(deterministic=True) for message in made]


def test_messages_of_a_call_pass_as_they_are(tmp_path: Path) -> None:
    requests, answers = serialized(messages("request")), serialized(messages("answer"))
    sent, returned = call(requests, answers)
    arrived = []

    def server(sock: Any) -> None:
        arrived.append(read_exactly(sock, len(sent)))
        sock.sendall(returned)
        sock.recv(1)

    tap = {"directory": "tap", "rules": [{"name": "all"}]}
    with ScriptedUpstream(server) as upstream, Framegate(tmp_path, config_of(upstream, tap=tap)) as proxy:
        with proxy.connect("calls") as client:
            client.sendall(sent)
            assert read_exactly(client, len(returned)) == returned
        assert arrived == [sent]
        closed = proxy.wait_row(lambda row: row["event"] == "closed")
        assert closed["frames"] == {"request": len(requests), "response": len(answers)}
    bodies = [item.body for item in read_frames(str(tmp_path / "tap")) if item.direction == "request"]
    assert {body[0] for body in bodies} == {0, 1}, "the flag lies in front of each"
    assert [gzip.decompress(body[1:]) if body[0] else body[1:] for body in bodies] == requests


def test_http2_is_named_and_not_spoken(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream, Framegate(tmp_path, config_of(upstream)) as proxy:
        host, port = proxy.address("calls")
        with grpc.insecure_channel(f"{host}:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
            with pytest.raises(grpc.RpcError) as failed:
                channel.unary_unary("/tests.Peers/Call")(b"", timeout=10)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        row = proxy.wait_row(lambda row: row["event"] == "closed")
        assert (row["cause"], row["side"]) == ("wrong_protocol", "downstream")
        assert "HTTP/2" in row["detail"]
