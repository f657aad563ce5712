"""A real gRPC service over a fake plane, on a temporary Unix socket, for the length of one coroutine."""

import asyncio
import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf import descriptor_pool, message_factory

from framegate.control.service import Service, start
from framegate.control.service.access import METHODS
from framegate.control.service.interceptor import CallObserver
from framegate.proxy.config.model import AdminConfig, TapConfig
from tests.fakes.plane import FakePlane, fake_config

if TYPE_CHECKING:
    from framegate.control.telemetry.traces import CallSpans

T = TypeVar("T")


class Api:
    """The methods of all services on a channel, by their names."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    def __getattr__(self, method: str) -> Any:
        (path,) = [name for name in METHODS if name.endswith(f"/{method}")]
        rpc = descriptor_pool.Default().FindMethodByName(path.replace("/", "."))
        answer = message_factory.GetMessageClass(rpc.output_type)
        return self._channel.unary_unary(f"/{path}", lambda request: request.SerializeToString(), answer.FromString)


class Serving:
    """What a test gets: ``plane``, ``service``, ``channel``, a client on the socket, and its ``api``."""

    def __init__(self, plane: FakePlane, service: Service, channel: grpc.aio.Channel) -> None:
        self.plane = plane
        self.service = service
        self.channel = channel
        self.api = Api(channel)


@contextlib.asynccontextmanager
async def serving(
    observe: CallObserver | None = None, tap: TapConfig | None = None, tracer: "CallSpans | None" = None, admin: AdminConfig | None = None
) -> AsyncIterator[Serving]:
    folder = Path(tempfile.mkdtemp(prefix="fg"))
    config = fake_config(f"unix:{folder}/admin.sock", tap=tap)
    plane = FakePlane(config if admin is None else dataclasses.replace(config, admin=admin))
    try:
        service = await start(plane.parts, plane.config, observe, lambda: tracer)
        try:
            async with grpc.aio.insecure_channel(service.address) as channel:
                yield Serving(plane, service, channel)
        finally:
            await service.stop(0)
            assert (plane.subscribers, plane.failures) == ([], [])
    finally:
        plane.close()
        shutil.rmtree(folder)


def run(
    body: Callable[[Serving], Awaitable[T]], observe: CallObserver | None = None, tap: TapConfig | None = None, tracer: "CallSpans | None" = None
) -> T:
    """Run the body of a test with a service at hand."""

    async def main() -> T:
        async with serving(observe, tap, tracer) as at_hand:
            return await asyncio.wait_for(body(at_hand), 20)

    return asyncio.run(main())
