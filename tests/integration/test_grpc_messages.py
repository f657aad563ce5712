"""gRPC's messages are frames without the HTTP/2 that carries them in calls: a client that begins to speak it is told so."""

from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.fakes.framegate import Framegate
from tests.fakes.upstream import ScriptedUpstream

pytestmark = pytest.mark.slow


def config_of(upstream: ScriptedUpstream, **other: Any) -> dict[str, Any]:
    common = {"framing": "grpc_message"}
    return {
        "listeners": [{"name": "calls", "address": "127.0.0.1:0", "upstream": "server", "max_receive_size": "4MiB", **common}],
        "upstreams": [{"name": "server", "endpoints": [upstream.address], **common}],
        **other,
    }


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
