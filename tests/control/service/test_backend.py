"""gRPC's servers are loaded for the first caller, once, and a failure is tried again."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest

from framegate.control.service import api, backend
from framegate.control.v1.upstream_service_pb2 import ListUpstreamsRequest
from framegate.control.v1.upstream_service_pb2_grpc import UpstreamServiceStub
from tests.control.service.served import served
from tests.fakes.serving import Serving

IDLE = """
import asyncio, sys
sys.path.append(sys.argv[2])
from framegate.control.service import start
from tests.fakes.plane import FakePlane, fake_config
def loaded():
    return [name for name in ("grpc", "google.protobuf") if name in sys.modules]
async def probe(address, request):
    reader, writer = await asyncio.open_connection(*address.split(":"))
    writer.write(request)
    writer.write_eof()
    return await reader.read()
async def main():
    plane = FakePlane(fake_config(f"unix:{sys.argv[1]}/admin.sock", health="127.0.0.1:0"))
    service = await start(plane.parts, plane.config)
    assert b" 200 " in await probe(service.health_address, b"GET /healthz HTTP/1.1\\r\\n\\r\\n")
    reader, writer = await asyncio.open_unix_connection(f"{sys.argv[1]}/admin.sock")
    (relay,) = service._sockets._relays
    while not any(relay.connections.values()):
        await asyncio.sleep(0)
    print(loaded(), service._backend._starting)
    writer.write(b"PRI * HTTP/2.0")
    writer.write_eof()
    await reader.read()
    print(loaded())
    await service.stop(0)
    plane.close()
asyncio.run(main())
"""


def test_grpc_is_loaded_for_the_first_caller_who_sends_something_and_not_before(tmp_path: Path) -> None:
    """In a process of its own, which has not loaded it for other tests."""
    command = [sys.executable, "-c", IDLE, str(tmp_path), str(Path(__file__).parents[3])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=30, check=True)
    assert done.stdout.splitlines() == ["[] None", "['grpc', 'google.protobuf']"]


@served()
async def test_the_first_callers_share_one_start(at: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    monkeypatch.setattr(backend, "load", lambda name: loads.append(name) or api)
    stubs = [UpstreamServiceStub(grpc.aio.insecure_channel(at.service.address, options=[("grpc.use_local_subchannel_pool", 1)])) for _ in range(8)]
    await asyncio.gather(*(stub.ListUpstreams(ListUpstreamsRequest()) for stub in stubs))
    assert loads == ["framegate.control.service.api"]


@served()
async def test_a_start_that_fails_is_logged_and_the_next_caller_tries_again(
    at: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(at.service._backend, "_module", "framegate.control.service.missing")
        reader, writer = await asyncio.open_unix_connection(at.service.address.removeprefix("unix:"))
        writer.write(b"PRI")
        assert await reader.read() == b""
        writer.close()
    assert [row.message for row in caplog.records if row.levelname == "ERROR"] == ["a gRPC server cannot be started"]
    await UpstreamServiceStub(at.channel).ListUpstreams(ListUpstreamsRequest(), wait_for_ready=True)


@served()
async def test_an_end_during_the_start_waits_for_it_and_leaves_nothing(at: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, go = threading.Event(), threading.Event()

    def load(name: str) -> object:
        loading.set()
        assert go.wait(20)
        return api

    monkeypatch.setattr(backend, "load", load)
    reader, writer = await asyncio.open_unix_connection(at.service.address.removeprefix("unix:"))
    writer.write(b"PRI")
    assert await asyncio.to_thread(loading.wait, 20)
    ending = asyncio.create_task(at.service.stop(0))
    await asyncio.sleep(0)
    go.set()
    await ending
    await reader.read()  # until the end
    writer.close()
    assert not Path(at.service.address.removeprefix("unix:")).exists()


@served()
async def test_nothing_is_started_after_the_end(at: Serving) -> None:
    await at.service.stop(0)
    with pytest.raises(ConnectionAbortedError, match="framegate ends"):
        await at.service._backend.path()
