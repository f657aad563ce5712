"""Whole proxies between peers that speak different framings: Protobuf's own delimited messages on one side, on the other what the format says."""

import io
from pathlib import Path
from typing import Any

from google.protobuf import proto, struct_pb2

from framegate.proxy.tap import log_reader, record
from framegate.proxy.tap.completeness import verify
from tests.fakes.framegate import Framegate
from tests.fakes.tap_read import read_blocks, read_frames
from tests.fakes.upstream import ScriptedUpstream, frame, read_frame


def config_of(upstream: ScriptedUpstream, **other: Any) -> dict[str, Any]:
    return {
        "listeners": [{"name": "events", "address": "127.0.0.1:0", "upstream": "store", "max_receive_size": "1MiB", "framing": "varint"}],
        "upstreams": [{"name": "store", "endpoints": [upstream.address], **other}],
    }


def messages(count: int) -> list[struct_pb2.Struct]:
    """Protobuf messages of many sizes, the first of them empty."""
    made = [struct_pb2.Struct() for _ in range(count)]
    for number, message in enumerate(made):
        message.update({f"key {index}": "x" * number * index for index in range(number)})
    return made


def test_protobufs_delimited_messages_reach_an_int32_server_and_come_back(tmp_path: Path) -> None:
    sent = messages(40)

    def reverse(sock: Any) -> None:
        """A server that knows nothing of varints: it turns around the fields of each message."""
        while True:
            message = struct_pb2.Struct.FromString(read_frame(sock))
            answer = struct_pb2.Struct()
            answer.update({name: value[::-1] for name, value in message.items()})
            sock.sendall(frame(answer.SerializeToString()))

    tap = {"directory": "tap", "rules": [{"name": "all"}]}
    with ScriptedUpstream(reverse) as upstream, Framegate(tmp_path, {**config_of(upstream), "tap": tap}) as proxy:
        with proxy.connect("events") as client:
            out = io.BytesIO()
            for message in sent:
                proto.serialize_length_prefixed(message, out)
            client.sendall(out.getvalue())
            with client.makefile("rb") as stream:
                for message in sent:
                    answer = proto.parse_length_prefixed(struct_pb2.Struct, stream)
                    assert answer is not None
                    assert dict(answer.items()) == {name: value[::-1] for name, value in message.items()}
        closed = proxy.wait_row(lambda row: row["event"] == "closed")
        assert (closed["cause"], closed["frames"]) == ("peer_closed", {"request": 40, "response": 40})
    requests = [item.body for item in read_frames(str(tmp_path / "tap")) if item.direction == "request"]
    assert requests == [message.SerializeToString() for message in sent]
    (stream_name,) = log_reader.streams(str(tmp_path / "tap"))
    rows = [row for block in read_blocks(str(tmp_path / "tap"), stream_name) for row in block.rows if row.kind == record.KIND_FRAMES]
    assert {(record.DIRECTIONS[row.direction], record.FRAMINGS[row.framing]) for row in rows} == {("request", "varint"), ("response", "int32")}
    assert verify(str(tmp_path / "tap")).complete
