"""The socket: its mode, its lock, reflection over it, and its end."""

import asyncio
import contextlib
import gc
import stat
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from framegate.control.errors import StartError
from framegate.control.service import api, backend, interceptor, start
from framegate.control.service.api import SERVICE_NAMES
from framegate.control.service.interceptor import MAX_CALLS, MAX_REQUEST
from framegate.control.status import UpstreamStatus
from framegate.control.v1.limit_service_pb2 import Limit, UpdateLimitRequest
from framegate.control.v1.limit_service_pb2_grpc import LimitServiceStub
from framegate.control.v1.upstream_service_pb2 import ListUpstreamsRequest
from framegate.control.v1.upstream_service_pb2_grpc import UpstreamServiceStub
from tests.control.service.served import refused, served
from tests.fakes.plane import FakePlane, fake_config
from tests.fakes.serving import Serving, run


def test_only_the_owner_may_open_the_socket_and_it_is_gone_afterwards() -> None:
    async def body(at: Serving) -> Path:
        path = Path(at.service.address.removeprefix("unix:"))
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        return path

    assert not run(body).exists()


@served()
async def test_a_second_instance_is_refused_and_the_first_goes_on(at: Serving) -> None:
    with pytest.raises(StartError) as caught:
        await start(at.plane.parts, at.plane.config)
    assert caught.value.reason == "ADMIN_ADDRESS_IN_USE"
    assert len(at.plane.subscribers) == 1
    names = await reflected_services(at.channel)
    assert set(SERVICE_NAMES) < set(names)


def test_a_socket_file_left_behind_does_not_matter(tmp_path: Path) -> None:
    async def main() -> None:
        plane = FakePlane(fake_config(f"unix:{tmp_path}/new/admin.sock", health=None))
        for _ in range(2):
            service = await start(plane.parts, plane.config)
            assert service.health_address is None
            await service.stop(0)
            import socket

            with socket.socket(socket.AF_UNIX) as stale:
                stale.bind(str(tmp_path / "new" / "admin.sock"))
        plane.close()

    asyncio.run(main())


@pytest.mark.parametrize("steps", range(8))
def test_a_start_that_is_cancelled_at_any_step_leaves_nothing_and_fails_nowhere(tmp_path: Path, steps: int) -> None:
    failures: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        plane = FakePlane(fake_config(f"unix:{tmp_path}/admin.sock", health="127.0.0.1:0"))
        starting = asyncio.ensure_future(start(plane.parts, plane.config))
        for _ in range(steps):
            await asyncio.sleep(0)
        if starting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await starting
        else:
            await starting.result().stop(0)
        assert plane.subscribers == []
        assert not (tmp_path / "admin.sock").exists()
        service = await start(plane.parts, plane.config)
        await service.stop(0)
        plane.close()

    asyncio.run(main())
    gc.collect()
    assert failures == []


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


@pytest.mark.parametrize(
    ("admin", "health", "reason"),
    [
        ("unix:{folder}/" + "x" * 108, None, "ADMIN_ADDRESS_UNUSABLE"),
        ("127.0.0.1:0", None, "ADMIN_ADDRESS_UNUSABLE"),
        ("unix:/proc/none/admin.sock", None, "ADMIN_ADDRESS_UNUSABLE"),
        ("unix:{folder}/file", None, "ADMIN_ADDRESS_UNUSABLE"),
        ("unix:{folder}/admin.sock", "192.0.2.1:1", "HEALTH_ADDRESS_UNUSABLE"),
    ],
)
def test_an_address_that_cannot_be_served_says_so(tmp_path: Path, admin: str, health: str | None, reason: str) -> None:
    (tmp_path / "file").write_text("in the way")

    async def main() -> None:
        plane = FakePlane(fake_config(admin.format(folder=tmp_path), health))
        with pytest.raises(StartError) as caught:
            await start(plane.parts, plane.config)
        assert caught.value.reason == reason
        assert plane.subscribers == []
        assert not (tmp_path / "admin.sock").exists()
        plane.close()

    asyncio.run(main())


async def reflect(channel: grpc.aio.Channel, request: reflection_pb2.ServerReflectionRequest) -> reflection_pb2.ServerReflectionResponse:
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(request)
    answer = await call.read()
    await call.done_writing()
    return answer


async def reflected_services(channel: grpc.aio.Channel) -> list[str]:
    answer = await reflect(channel, reflection_pb2.ServerReflectionRequest(list_services=""))
    return [service.name for service in answer.list_services_response.service]


@served()
async def test_a_reflection_client_finds_every_service_with_its_files(at: Serving) -> None:
    assert {name.rpartition(".")[2] for name in SERVICE_NAMES} == {
        "CertificateService", "ChannelService", "ConfigurationService", "EventService", "ExplanationService", "HandlerService",
        "KafkaRuleService", "LimitService", "ListenerService", "LogService", "PoolService", "ProxyService",
        "TapService", "UpstreamService", "UserService",
    }  # fmt: skip
    for name in SERVICE_NAMES:
        answer = await reflect(at.channel, reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        file = FileDescriptorProto.FromString(answer.file_descriptor_response.file_descriptor_proto[0])
        assert name in [f"{file.package}.{service.name}" for service in file.service]


@served()
async def test_no_more_calls_than_the_bound_are_in_progress_and_who_is_refused_may_ask_again(at: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, inside = asyncio.Event(), 0

    async def wait() -> list[UpstreamStatus]:
        nonlocal inside
        inside += 1
        await gate.wait()
        return []

    monkeypatch.setattr(at.plane.parts.upstreams, "statuses", wait)
    async with contextlib.AsyncExitStack() as stack:
        options = (("grpc.use_local_subchannel_pool", 1),)  # a connection for each
        channels = [await stack.enter_async_context(grpc.aio.insecure_channel(at.service.address, options)) for _ in range(2)]
        stubs = [UpstreamServiceStub(channel) for channel in channels]
        calls = [asyncio.ensure_future(stubs[number % 2].ListUpstreams(ListUpstreamsRequest())) for number in range(MAX_CALLS)]
        while inside < MAX_CALLS:
            await asyncio.sleep(0.005)
        assert await refused(stubs[0].ListUpstreams(ListUpstreamsRequest())) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_CALLS", [])
        assert inside == MAX_CALLS
        gate.set()
        await asyncio.gather(*calls)
        await stubs[0].ListUpstreams(ListUpstreamsRequest())


@served()
async def test_a_request_above_the_bound_is_refused_by_its_size_and_one_at_it_has_a_short_row(at: Serving) -> None:
    reasons = []
    for excess in (0, 1):
        request = UpdateLimitRequest(limit=Limit(listener="kafka", max_receive_size_bytes=1))
        request.update_mask.paths.append("x" * 250_000)
        request.update_mask.paths.append("y" * (MAX_REQUEST - request.ByteSize() - 3 + excess))
        assert request.ByteSize() == MAX_REQUEST + excess
        reasons.append(await refused(LimitServiceStub(at.channel).UpdateLimit(request)))
    invalid, exhausted = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reasons == [(invalid, "INVALID_ARGUMENT", ["update_mask"] * 2), (exhausted, "REQUEST_TOO_LARGE", [])]
    row, refusal = at.plane.audits
    assert (refusal["error"], refusal["request"]) == ("REQUEST_TOO_LARGE", None)
    assert row["request"]["update_mask"].endswith(" characters)")
    assert len(str(row)) < 20_000


@pytest.mark.parametrize("size", [MAX_REQUEST + 1, (1 << 20) + 1, 7 << 20])
@served()
async def test_a_request_that_is_far_too_large_is_refused_with_a_reason_whatever_its_method(at: Serving, *, size: int) -> None:
    exhausted = (grpc.StatusCode.RESOURCE_EXHAUSTED, "REQUEST_TOO_LARGE", [])
    for name in ("ListLimits", "UpdateLimit"):
        assert await refused(at.channel.unary_unary(f"/framegate.control.v1.LimitService/{name}")(bytes(size))) == exhausted
    assert await refused(at.channel.unary_stream("/framegate.control.v1.EventService/WatchEvents")(bytes(size)).read()) == exhausted
    assert [row["error"] for row in at.plane.audits] == ["REQUEST_TOO_LARGE"]


@served()
async def test_few_requests_are_received_at_once_and_one_that_does_not_arrive_makes_room(at: Serving, *, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptor, "_REQUEST_S", 0.2)
    slow = [at.channel.stream_unary("/framegate.control.v1.LimitService/ListLimits")() for _ in range(interceptor._READS)]
    await asyncio.sleep(0.1)
    quick = asyncio.ensure_future(at.channel.unary_unary("/framegate.control.v1.LimitService/ListLimits")(b""))
    await asyncio.sleep(0.05)
    assert not quick.done()
    await quick
    assert {(await refused(call))[1] for call in slow} == {"REQUEST_TOO_SLOW"}
