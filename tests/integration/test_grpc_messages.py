"""gRPC's messages, as its own library wrote them, through whole proxies as opaque frames; HTTP/2, which carries them in calls, is not spoken."""

import gzip
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2

from tests.fakes.framegate import Framegate
from tests.fakes.grpc_bytes import call
from tests.fakes.tap_read import read_frames
from tests.fakes.upstream import ScriptedUpstream, read_exactly

pytestmark = pytest.mark.slow
GRPC = {"framing": "grpc_message"}


def config_of(upstream: ScriptedUpstream, listener: dict[str, Any], side: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {
        "listeners": [{"name": "calls", "address": "127.0.0.1:0", "upstream": "server", "max_receive_size": "4MiB", **listener}],
        "upstreams": [{"name": "server", "endpoints": [upstream.address], **side}],
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
    sent, returned = call(requests, answers, grpc.Compression.Gzip)
    arrived = []

    def server(sock: Any) -> None:
        arrived.append(read_exactly(sock, len(sent)))
        sock.sendall(returned)
        sock.recv(1)

    upstream = ScriptedUpstream(server)
    try:
        tap = {"directory": "tap", "rules": [{"name": "all"}]}
        with Framegate(tmp_path, config_of(upstream, GRPC, GRPC, tap=tap)) as proxy:
            with proxy.connect("calls") as client:
                client.sendall(sent)
                assert read_exactly(client, len(returned)) == returned
            assert arrived == [sent]
            closed = proxy.wait_row(lambda row: row["event"] == "closed")
            assert closed["frames"] == {"request": len(requests), "response": len(answers)}
    finally:
        upstream.close()
    bodies = [item.body for item in read_frames(str(tmp_path / "tap")) if item.direction == "request"]
    assert {body[0] for body in bodies} == {0, 1}, "the flag lies in front of each"
    assert [gzip.decompress(body[1:]) if body[0] else body[1:] for body in bodies] == requests


def test_http2_is_named_and_not_spoken(tmp_path: Path) -> None:
    upstream = ScriptedUpstream()
    try:
        with Framegate(tmp_path, config_of(upstream, GRPC, GRPC)) as proxy:
            host, port = proxy.address("calls")
            with grpc.insecure_channel(f"{host}:{port}", options=[("grpc.enable_http_proxy", 0)]) as channel:
                with pytest.raises(grpc.RpcError) as failed:
                    channel.unary_unary("/tests.Peers/Call")(b"", timeout=10)
                assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
            row = proxy.wait_row(lambda row: row["event"] == "closed")
            assert (row["cause"], row["side"]) == ("wrong_protocol", "downstream")
            assert "HTTP/2" in row["detail"]
    finally:
        upstream.close()
