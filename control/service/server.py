"""The two gRPC servers of the control process: the API on its Unix socket, health on a plaintext port.

grpc removes a socket file that it finds before it binds, a living server's as well. So whoever wants to serve an address first takes a lock on the
file ``<path>.lock`` beside it; the kernel gives the lock back when the process ends, however it ends. The socket is made under a umask that
leaves it to its owner alone.
"""

import contextlib
import fcntl
import os
import pathlib
import stat
from collections.abc import Callable
from typing import Any, Final

import grpc

from framegate.control.errors import StartError
from framegate.control.service.access import METHODS
from framegate.control.service.certificates import Certificates
from framegate.control.service.channels import Channels
from framegate.control.service.closed import ClosedChannels
from framegate.control.service.handlers import Handlers
from framegate.control.service.interceptor import CallInterceptor, CallObserver, CallTracer
from framegate.control.service.limits import Limits
from framegate.control.service.listeners import Listeners
from framegate.control.service.logs import Logs
from framegate.control.service.pools import Pools
from framegate.control.service.probes import Probes, start_probes, start_whole
from framegate.control.service.proxies import Proxies
from framegate.control.service.taps import TapRules
from framegate.control.service.upstreams import Upstreams
from framegate.control.service.users import Users
from framegate.control.steering.steering import Parts
from framegate.control.v1 import (
    certificate_service_pb2_grpc,
    channel_service_pb2_grpc,
    handler_service_pb2_grpc,
    limit_service_pb2_grpc,
    listener_service_pb2_grpc,
    log_service_pb2_grpc,
    pool_service_pb2_grpc,
    proxy_service_pb2_grpc,
    tap_service_pb2_grpc,
    upstream_service_pb2_grpc,
    user_service_pb2_grpc,
)
from framegate.proxy.config.address import MAX_UNIX_PATH_BYTES
from framegate.proxy.config.model import ProxyConfig

__all__ = ["MAX_CALLS", "MAX_REQUEST", "SERVICE_NAMES", "Service", "start"]

SERVICE_NAMES: Final = tuple(dict.fromkeys(method.partition("/")[0] for method in METHODS))
_REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"
_UNIX: Final = "unix:"
MAX_REQUEST: Final = 256 * 1024
"""Bytes. The largest that make sense are a thousand overrides, or a tap rule with a thousand principals. A larger one is refused by its header."""
_OPTIONS: Final = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MAX_REQUEST), ("grpc.http2.bdp_probe", 0))
"""Without the probe, which finds a Unix socket so fast that gRPC takes whole requests of hundreds of calls into memory before their turn."""
MAX_CALLS: Final = 64
"""In progress at once; a further one is refused (RESOURCE_EXHAUSTED) before its request is received. One that waits for a drain is one of them."""


class Service:
    """What was started.

    Attributes:
        address: ``unix:PATH``.
        health_address, health_http_address: ``host:port`` with the port bound, or None.
    """

    def __init__(self, server: grpc.aio.Server, address: str, probes: Probes, release: Callable[[], None]) -> None:
        self.address = address
        self.health_address = probes.grpc_address
        self.health_http_address = probes.http_address
        self._server = server
        self._probes = probes
        self._release = release

    async def stop(self, grace_ms: int = 500) -> None:
        """Take no new calls, give those under way ``grace_ms``, close; then remove the socket and give the lock back. Health goes last."""
        try:
            await self._server.stop(grace_ms / 1000)
            await self._probes.stop()
        finally:
            self._release()


async def start(parts: Parts, config: ProxyConfig, observe: CallObserver | None = None, tracer: CallTracer | None = None) -> Service:
    """Serve the API on ``config.admin.address`` and health on the addresses of ``config.health``.

    Args:
        parts: answer the calls.
        config: only its addresses are read.
        observe: is told of every call that ended; ``Telemetry.record_call``.
        tracer: makes spans of the API's calls. Probes have none: they come every few seconds, and say nothing.

    Raises:
        StartError: another instance serves the socket, or an address cannot be bound.
    """
    subscription = parts.events.subscribe(("closed",))
    closed = ClosedChannels(subscription.take)
    with contextlib.ExitStack() as stack:
        stack.callback(subscription.close)
        path = _socket_path(config.admin.address)
        stack.callback(_lock(path))
        server = _api_server(parts, closed, observe, tracer)
        _bind_socket(server, path)
        stack.callback(_remove, path)
        await start_whole(server)
        try:
            probes = await start_probes(parts.state, config.health, observe)
        except BaseException:
            await server.stop(0)
            raise
        return Service(server, f"{_UNIX}{path}", probes, stack.pop_all().close)


def _api_server(parts: Parts, closed: ClosedChannels, observe: CallObserver | None, tracer: CallTracer | None) -> grpc.aio.Server:
    server = grpc.aio.server(interceptors=[CallInterceptor(parts.audit, observe, tracer)], options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
    certificate_service_pb2_grpc.add_CertificateServiceServicer_to_server(Certificates(parts.certificates, parts.rotation), server)
    channel_service_pb2_grpc.add_ChannelServiceServicer_to_server(Channels(parts.channels, closed, parts.state), server)
    handler_service_pb2_grpc.add_HandlerServiceServicer_to_server(Handlers(parts.state), server)
    limit_service_pb2_grpc.add_LimitServiceServicer_to_server(Limits(parts.limits), server)
    listener_service_pb2_grpc.add_ListenerServiceServicer_to_server(Listeners(parts.listeners), server)
    log_service_pb2_grpc.add_LogServiceServicer_to_server(Logs(parts.log), server)
    pool_service_pb2_grpc.add_PoolServiceServicer_to_server(Pools(parts.pool, parts.state, parts.channels), server)
    proxy_service_pb2_grpc.add_ProxyServiceServicer_to_server(Proxies(parts), server)
    tap_service_pb2_grpc.add_TapServiceServicer_to_server(TapRules(parts.taps), server)
    upstream_service_pb2_grpc.add_UpstreamServiceServicer_to_server(Upstreams(parts.upstreams), server)
    user_service_pb2_grpc.add_UserServiceServicer_to_server(Users(parts.users), server)
    server.add_generic_rpc_handlers((_Reflection(),))
    return server


class _Reflection(grpc.GenericRpcHandler):
    """Server reflection, which tells ``grpcurl`` what there is. It is 1 MiB of modules, loaded by the first who asks."""

    def __init__(self) -> None:
        self._handler: Any = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a method of this service; None of any other."""
        if not str(handler_call_details.method).startswith(f"/{_REFLECTION}/"):
            return None
        if self._handler is None:
            self._handler = _reflection_handler()
        return self._handler


def _reflection_handler() -> Any:
    from grpc_reflection.v1alpha import reflection, reflection_pb2

    servicer = reflection.aio.ReflectionServicer([*SERVICE_NAMES, _REFLECTION])
    return grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )


def _socket_path(address: str) -> pathlib.Path:
    """The absolute path of ``unix:PATH``; its folder is made, for its owner alone, when there is none."""
    path = pathlib.Path(address.removeprefix(_UNIX)).absolute()
    if not address.startswith(_UNIX) or len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
        text = f"the admin address must be unix: and a path of at most {MAX_UNIX_PATH_BYTES} bytes, not {address}"
        raise StartError(text, reason="ADMIN_ADDRESS_UNUSABLE", address=address)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, error) from error
    return path


def _unusable(path: pathlib.Path, error: Exception) -> StartError:
    return StartError(f"the admin socket {path} cannot be made: {error}", reason="ADMIN_ADDRESS_UNUSABLE", address=f"{_UNIX}{path}")


def _lock(path: pathlib.Path) -> Callable[[], None]:
    """Take the lock of a socket's path; returns how to give it back. The file stays: removing it would let two processes lock two files."""
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StartError(f"another framegate serves the admin socket {path}", reason="ADMIN_ADDRESS_IN_USE", address=f"{_UNIX}{path}") from error
    return lambda: os.close(descriptor)


def _bind_socket(server: grpc.aio.Server, path: pathlib.Path) -> None:
    """Bind, with mode 0600 from the first moment."""
    if path.exists() and not path.is_socket():
        raise _unusable(path, FileExistsError("a file that is no socket is in the way"))
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"{_UNIX}{path}")
    except RuntimeError as error:
        raise _unusable(path, error) from error
    finally:
        os.umask(before)
    mode = stat.S_IMODE(path.stat().st_mode)
    assert mode == 0o600, f"the admin socket has the mode {mode:o}"


def _remove(path: pathlib.Path) -> None:
    path.unlink(missing_ok=True)
