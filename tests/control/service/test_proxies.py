"""ProxyService over a real socket."""

import asyncio
import os
import pwd

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from framegate.control.v1 import proxy_service_pb2 as pb2
from framegate.proxy.config.model import GIB, MIB
from tests.control.service.served import code_of, served
from tests.fakes.plane import channel_row
from tests.fakes.serving import Serving, run


async def state(at: Serving) -> pb2.Proxy.State.ValueType:
    return (await at.api.GetProxy(pb2.GetProxyRequest())).proxy.state


@served()
async def test_the_proxy_says_what_it_is_and_warns_of_what_troubles_the_tap(at: Serving) -> None:
    at.plane.troubles = ["the tap loses frames"]
    proxy = (await at.api.GetProxy(pb2.GetProxyRequest())).proxy
    assert (proxy.node, proxy.version, proxy.compiled, proxy.pid) == ("edge-1", "1.2.3", False, os.getpid())
    assert proxy.start_time.ToNanoseconds() == at.plane.started_ns
    assert "the tap loses frames" in proxy.warnings


def test_the_proxy_says_what_memory_it_may_need_and_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, int | None] = {"limit": GIB, "usage": 5}
    monkeypatch.setattr("framegate.control.service.proxies.memory_limit", lambda: given["limit"])
    monkeypatch.setattr("framegate.control.service.proxies.memory_usage", lambda: given["usage"] or 0)
    monkeypatch.setattr("framegate.control.service.proxies.process_memory", lambda pid: 3 if pid == os.getpid() else 0)

    async def body(at: Serving) -> None:
        async def proxy() -> pb2.Proxy:
            return (await at.api.GetProxy(pb2.GetProxyRequest())).proxy

        memory = (await proxy()).memory
        assert (memory.limit_bytes, memory.usage_bytes, memory.process_bytes, list(memory.uncounted_listeners)) == (GIB, 5, 3, ["kafka"])
        assert [part.name for part in memory.parts] == ["processes", "validator", "memory pool", "a frame beyond it in each processor", "connections"]
        assert memory.need_bytes == sum(part.need_bytes for part in memory.parts)
        assert not (await proxy()).warnings
        given["limit"] = 128 * MIB
        (warning,) = (await proxy()).warnings
        assert warning.startswith("the memory pool of 256MiB does not fit into the container's 128MiB: ")
        given.update(limit=None)  # the cgroup is whoever's session this is: what that uses is not ours to tell
        memory = (await proxy()).memory
        assert (memory.HasField("limit_bytes"), memory.HasField("usage_bytes"), list((await proxy()).warnings)) == (False, False, [])

    run(body)


@served()
async def test_the_memory_of_the_processes_is_measured_once_for_all_who_ask_within_a_second(at: Serving, *, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("framegate.control.service.proxies.process_memory", lambda pid: asked.append(pid) or 7)
    for seconds, calls, count in ((60.0, 20, 1), (0.0, 1, 2)):
        monkeypatch.setattr("framegate.control.service.proxies._MEASURED_S", seconds)
        found = await asyncio.gather(*(at.api.GetProxy(pb2.GetProxyRequest()) for _ in range(calls)))
        assert ({answer.proxy.memory.process_bytes for answer in found}, len(asked)) == ({7}, count)


@served()
async def test_the_state_of_the_proxy_goes_from_starting_to_drained(at: Serving) -> None:
    at.plane.add(channel_row("0-1-1"))
    at.plane.started = False
    assert await state(at) == pb2.Proxy.STATE_STARTING
    at.plane.started = True
    assert await state(at) == pb2.Proxy.STATE_SERVING
    drain = at.api.DrainProxy
    assert (await drain(pb2.DrainProxyRequest(reason="preStop"))).open_connection_count == 1
    assert at.plane.accepting
    assert await state(at) == pb2.Proxy.STATE_DRAINING
    await drain(pb2.DrainProxyRequest(accept=pb2.DrainProxyRequest.ACCEPT_REFUSE), metadata=(("framegate-client", "somebody, pid 7"),))
    assert not at.plane.accepting
    assert await state(at) == pb2.Proxy.STATE_DRAINING
    answer = await at.api.DrainProxy(pb2.DrainProxyRequest(wait=True, timeout=Duration(seconds=2)))
    assert (answer.closed_connection_count, answer.open_connection_count) == (1, 0)
    assert await state(at) == pb2.Proxy.STATE_DRAINED
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert at.plane.asked == [
        ("drain", None, False, None, user, "preStop"),
        ("drain", None, False, "refuse", user, ""),
        ("drain", 2000, True, None, user, ""),
    ], "who asks is not what the client calls itself"


@pytest.mark.parametrize(
    "request_", [pb2.DrainProxyRequest(accept=7), pb2.DrainProxyRequest(accept=pb2.DrainProxyRequest.ACCEPT_UNTIL_STOP, wait=True)]
)
@served()
async def test_a_drain_with_an_unknown_or_unfitting_value_of_accept_is_refused(at: Serving, request_: pb2.DrainProxyRequest) -> None:
    assert await code_of(at.api.DrainProxy(request_)) is grpc.StatusCode.INVALID_ARGUMENT
    assert at.plane.health().ready
