"""The API's gRPC server on its Unix socket; it starts the probes (``probes``), too.

grpc removes an existing socket file before it binds, also one that another server uses. So a process first locks the file ``<path>.lock`` beside the
socket; the kernel releases the lock when the process ends for any reason. The socket is created under a umask that gives access to its owner only.
"""

import contextlib
import fcntl
import os
import pathlib
import stat
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

from framegate.control.errors import StartError
from framegate.control.service.access import METHODS
from framegate.control.service.certificates import Certificates
from framegate.control.service.channels import Channels, ClosedChannels
from framegate.control.service.configuration import Configurations
from framegate.control.service.events import Events
from framegate.control.service.explanations import Explanations
from framegate.control.service.interceptor import MAX_CALLS, MAX_REQUEST, MAX_WATCHERS, CallInterceptor, CallObserver
from framegate.control.service.kafka_rules import KafkaRules
from framegate.control.service.limits import Limits
from framegate.control.service.logs import Logs
from framegate.control.service.pools import Pools
from framegate.control.service.probes import Probes, start_probes, start_whole
from framegate.control.service.proxies import Proxies
from framegate.control.service.resources import Handlers, Listeners, Upstreams
from framegate.control.service.taps import TapRules
from framegate.control.service.users import Users
from framegate.control.steering.steering import Parts
from framegate.proxy.config.address import MAX_UNIX_PATH_BYTES
from framegate.proxy.config.model import ProxyConfig

if TYPE_CHECKING:
    from framegate.control.telemetry.traces import CallSpans

__all__ = ["SERVICE_NAMES", "Service", "start"]

SERVICE_NAMES: Final = tuple(dict.fromkeys(method.partition("/")[0] for method in METHODS))
_REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"
_UNIX: Final = "unix:"
_MOST_BYTES: Final = 4 * MAX_REQUEST
"""Requests above it are refused by gRPC itself, by their header, so without a reason: to give one, it would have to read them into memory."""
_MOST_CALLS: Final = 2 * MAX_CALLS + MAX_WATCHERS
"""Calls above it are refused by gRPC itself; it counts those whose requests are being read, too."""
_OPTIONS: Final = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.http2.bdp_probe", 0))
"""Without the probe, which measures a Unix socket as so fast that gRPC reads whole requests of hundreds of waiting calls into memory."""


class Service:
    """The running servers.

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
        """Accept no new calls, wait ``grace_ms`` for those in progress, and close; then stop the probes, remove the socket and release the lock."""
        try:
            await self._server.stop(grace_ms / 1000)
            await self._probes.stop()
        finally:
            self._release()


async def start(parts: Parts, config: ProxyConfig, observe: CallObserver | None = None, tracer: "CallSpans | None" = None) -> Service:
    """Serve the API on ``config.admin.address`` and health on the addresses of ``config.health``.

    Args:
        parts: steering, which answers the calls.
        config: only its addresses are read.
        observe: called for every call that ended; ``Telemetry.record_call``.
        tracer: makes spans of the API's calls. Probes have none, because there are many and they are all alike.

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
        stack.callback(path.unlink, missing_ok=True)
        await start_whole(server)
        try:
            probes = await start_probes(parts.state, config.health, observe)
        except BaseException:
            await server.stop(0)
            raise
        return Service(server, f"{_UNIX}{path}", probes, stack.pop_all().close)


def _api_server(parts: Parts, closed: ClosedChannels, observe: CallObserver | None, tracer: "CallSpans | None") -> grpc.aio.Server:
    server = grpc.aio.server(interceptors=[CallInterceptor(parts.audit, observe, tracer)], options=_OPTIONS, maximum_concurrent_rpcs=_MOST_CALLS)
    servicers = (
        Certificates(parts.certificates, parts.rotation),
        Channels(parts.channels, closed, parts.state),
        Configurations(parts.configuration_file),
        Events(parts.rows),
        Explanations(parts.explanations),
        Handlers(parts.state),
        KafkaRules(parts.kafka_rules),
        Limits(parts.limits, parts.sizes),
        Listeners(parts.listeners, parts.refused_frames),
        Logs(parts.log),
        Pools(parts.pool, parts.state, parts.channels),
        Proxies(parts),
        TapRules(parts.taps),
        Upstreams(parts.upstreams, parts.brokers),
        Users(parts.users),
    )
    for servicer in servicers:
        generated = type(servicer).__mro__[1]
        getattr(sys.modules[generated.__module__], f"add_{generated.__name__}_to_server")(servicer, server)
    server.add_generic_rpc_handlers((_Reflection(),))
    return server


class _Reflection(grpc.GenericRpcHandler):
    """Server reflection, for ``grpcurl``. It is 1 MiB of modules, loaded by the first request."""

    def __init__(self) -> None:
        self._handler: Any = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a method of this service; None for any other."""
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
    """The absolute path of ``unix:PATH``; its folder is created, for its owner only, if there is none."""
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
    """Lock a socket's path; returns the function that unlocks it. The file stays: without it two processes could lock two different files."""
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
    """Bind, with mode 0600 from the beginning."""
    if path.exists() and not path.is_socket():
        raise _unusable(path, FileExistsError("a file that is not a socket exists at this path"))
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"{_UNIX}{path}")
    except RuntimeError as error:
        raise _unusable(path, error) from error
    finally:
        os.umask(before)
    mode = stat.S_IMODE(path.stat().st_mode)
    assert mode == 0o600, f"the admin socket has the mode {mode:o}"
