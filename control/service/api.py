"""The API's gRPC server. It imports grpc and the messages of the API; ``framegate.control.service.server`` imports it for the first caller."""

import sys
from collections.abc import Callable
from typing import Any, Final

import grpc

from framegate.control.events import Event, Gap
from framegate.control.service.access import METHODS
from framegate.control.service.channels import Channels, ClosedChannels
from framegate.control.service.configuration import Configurations
from framegate.control.service.events import Events
from framegate.control.service.explanations import Explanations
from framegate.control.service.interceptor import MAX_CALLS, MAX_REQUEST, MAX_WATCHERS, CallInterceptor, CallObserver, Tracer
from framegate.control.service.kafka_rules import KafkaRules
from framegate.control.service.limits import Limits
from framegate.control.service.logs import Logs
from framegate.control.service.peers import Peers
from framegate.control.service.pools import Pools
from framegate.control.service.proxies import Proxies
from framegate.control.service.resources import Certificates, Handlers, Listeners, Upstreams
from framegate.control.service.taps import TapRules
from framegate.control.service.users import Users
from framegate.control.steering.steering import Parts
from framegate.proxy.config.model import AdminConfig

Take = Callable[[], list[Event | Gap]]
SERVICE_NAMES: Final = tuple(dict.fromkeys(method.partition("/")[0] for method in METHODS))
_REFLECTION: Final = "grpc.reflection.v1alpha.ServerReflection"
_MOST_BYTES: Final = 32 * MAX_REQUEST  # Requests up to it are refused by the interceptor, with a reason, those above it by gRPC, by their header
_MOST_STREAMS: Final = MAX_CALLS + MAX_WATCHERS  # Calls of one connection; the client keeps further ones until one has ended
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", _MOST_BYTES),
    ("grpc.max_concurrent_streams", _MOST_STREAMS),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.http2.bdp_probe", 0),
)  # without the probe, which measures a Unix socket as so fast that gRPC reads whole requests of hundreds of waiting calls into memory


def api_server(parts: Parts, config: AdminConfig, take: Take, peers: Peers, observe: CallObserver | None, tracer: Tracer) -> grpc.aio.Server:
    """The server, which is not started. ``take``: see ``ClosedChannels``; the others: see ``framegate.control.service.server.start``."""
    closed = ClosedChannels(take)
    server = grpc.aio.server(interceptors=[CallInterceptor(parts.audit, peers, config, observe, tracer)], options=_OPTIONS)
    servicers = (
        Certificates(parts.certificates, parts.rotation),
        Channels(parts.channels, closed, parts.clients),
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
