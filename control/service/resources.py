"""ListenerService, UpstreamService, HandlerService and CertificateService, which only show, but for reloads of files."""

from framegate.control.errors import NotFoundError
from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.service.convert import duration, timestamp
from framegate.control.service.interceptor import Context, note
from framegate.control.service.update import fill
from framegate.control.service.validate import check_required, page
from framegate.control.status import BrokerStatus, CertificateStatus, HandlerProcessStatus, ListenerStatus, ReloadOutcome, UpstreamStatus
from framegate.control.steering import listeners
from framegate.control.steering.brokers import Brokers
from framegate.control.steering.listeners import RefusedFrames
from framegate.control.steering.state import State
from framegate.control.v1 import certificate_service_pb2 as pb2
from framegate.control.v1 import handler_service_pb2 as handler_pb2
from framegate.control.v1 import listener_service_pb2 as listener_pb2
from framegate.control.v1 import upstream_service_pb2 as upstream_pb2
from framegate.control.v1.certificate_service_pb2_grpc import CertificateServiceServicer
from framegate.control.v1.channel_service_pb2 import Cause, Side
from framegate.control.v1.handler_service_pb2_grpc import HandlerServiceServicer
from framegate.control.v1.listener_service_pb2_grpc import ListenerServiceServicer
from framegate.control.v1.upstream_service_pb2_grpc import UpstreamServiceServicer
from framegate.proxy.network.connection_id import format_connection_id
from framegate.proxy.server.rows import EndpointRow, RefusedFrameRow


class Listeners(ListenerServiceServicer):
    """Shows where clients connect."""

    def __init__(self, steered: listeners.Listeners, refused: RefusedFrames) -> None:
        self._listeners = steered
        self._refused = refused

    async def ListListeners(self, request: listener_pb2.ListListenersRequest, context: Context) -> listener_pb2.ListListenersResponse:
        statuses = sorted(self._listeners.statuses(), key=lambda status: status.name)
        chosen, token = page([(status.name, status) for status in statuses], request.page_size, request.page_token)
        return listener_pb2.ListListenersResponse(listeners=map(_listener, chosen), next_page_token=token)

    async def GetListener(self, request: listener_pb2.GetListenerRequest, context: Context) -> listener_pb2.GetListenerResponse:
        check_required(request.name, "name")
        for status in self._listeners.statuses():
            if status.name == request.name:
                return listener_pb2.GetListenerResponse(listener=_listener(status))
        raise NotFoundError("listener", request.name)

    async def ListRefusedFrames(self, request: listener_pb2.ListRefusedFramesRequest, context: Context) -> listener_pb2.ListRefusedFramesResponse:
        """One page of the frames that were refused last, the latest first."""
        check_required(request.listener, "listener")
        rows = [(f"{row['id']}/{row['side']}", row) for row in self._refused.latest(request.listener)]
        chosen, token = page(rows, request.page_size, request.page_token)
        return listener_pb2.ListRefusedFramesResponse(refused_frames=map(_refused_frame, chosen), next_page_token=token)


def _refused_frame(row: RefusedFrameRow) -> listener_pb2.RefusedFrame:
    return listener_pb2.RefusedFrame(
        channel_id=format_connection_id(row["id"]),
        time=timestamp(row["time_ns"]),
        side=Side.Value(f"SIDE_{row['side'].upper()}"),
        peer_address=row["peer"],
        principal=row["principal"],
        client_id=row["client_id"],
        cause=Cause.Value(f"CAUSE_{row['cause'].upper()}"),
        size_bytes=row["size"],
        limit_bytes=row["limit"],
        head=bytes.fromhex(row["head"]),
        limit_rule=row["rule"],
        report_only=row["report_only"],
    )


def _listener(status: ListenerStatus) -> listener_pb2.Listener:
    message = listener_pb2.Listener(
        request_forwarding=listener_pb2.Forwarding.Value(f"FORWARDING_{status.forwarding.requests.upper()}"),
        response_forwarding=listener_pb2.Forwarding.Value(f"FORWARDING_{status.forwarding.responses.upper()}"),
    )
    return fill(message, status, tls_enabled="tls", max_connection_count="max_connections", open_connection_count="connections")


class Upstreams(UpstreamServiceServicer):
    """Shows where frames are forwarded to."""

    def __init__(self, steered: listeners.Upstreams, brokers: Brokers) -> None:
        self._upstreams = steered
        self._brokers = brokers

    async def ListUpstreams(self, request: upstream_pb2.ListUpstreamsRequest, context: Context) -> upstream_pb2.ListUpstreamsResponse:
        statuses = sorted(await self._upstreams.statuses(), key=lambda status: status.name)
        chosen, token = page([(status.name, status) for status in statuses], request.page_size, request.page_token)
        return upstream_pb2.ListUpstreamsResponse(upstreams=map(_upstream, chosen), next_page_token=token)

    async def GetUpstream(self, request: upstream_pb2.GetUpstreamRequest, context: Context) -> upstream_pb2.GetUpstreamResponse:
        check_required(request.name, "name")
        for status in await self._upstreams.statuses():
            if status.name == request.name:
                return upstream_pb2.GetUpstreamResponse(upstream=_upstream(status))
        raise NotFoundError("upstream", request.name)

    async def ListBrokers(self, request: upstream_pb2.ListBrokersRequest, context: Context) -> upstream_pb2.ListBrokersResponse:
        statuses = await self._brokers.statuses(request.upstream)
        rows = [(f"{status.upstream}/{status.listener}/{status.node}", status) for status in statuses]
        chosen, token = page(rows, request.page_size, request.page_token)
        return upstream_pb2.ListBrokersResponse(brokers=map(_broker, chosen), next_page_token=token)


def _broker(status: BrokerStatus) -> upstream_pb2.Broker:
    return fill(upstream_pb2.Broker(), status, node_id="node", advertised_address="advertised", open_connection_count="connections")


def _upstream(status: UpstreamStatus) -> upstream_pb2.Upstream:
    message = upstream_pb2.Upstream(
        down_endpoints=[
            upstream_pb2.DownEndpoint(address=item["endpoint"], reason=_reason(item), detail=item["detail"], processor_count=item["out"])
            for item in status.states
            if item["out"]
        ],
        endpoint_states=map(_endpoint, status.states),
    )
    return fill(message, status, tls_enabled="tls", resolution_error="error")


def _reason(row: EndpointRow) -> upstream_pb2.Endpoint.Reason.ValueType:
    return upstream_pb2.Endpoint.Reason.Value(f"REASON_{row['reason'].upper() or 'UNSPECIFIED'}")


def _endpoint(row: EndpointRow) -> upstream_pb2.Endpoint:
    return upstream_pb2.Endpoint(
        address=row["endpoint"],
        node_id=row.get("broker"),
        state=upstream_pb2.Endpoint.State.Value(f"STATE_{row['state'].upper()}"),
        reason=_reason(row),
        detail=row["detail"],
        since_time=timestamp(row["since_ns"]) if row["since_ns"] else None,
        out_processor_count=row["out"],
        connection_count=row["connections"],
        weight=row["weight"],
        zone=row["zone"],
        latency=duration(row["latency_ns"]) if row["latency_ns"] else None,
    )


class Handlers(HandlerServiceServicer):
    """Shows handler processes."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def ListHandlers(self, request: handler_pb2.ListHandlersRequest, context: Context) -> handler_pb2.ListHandlersResponse:
        statuses = [(str(status.slot), status) for status in self._state.handler_processes()]
        chosen, token = page(statuses, request.page_size, request.page_token)
        return handler_pb2.ListHandlersResponse(processes=map(_handler_process, chosen), next_page_token=token)


def _handler_process(status: HandlerProcessStatus) -> handler_pb2.HandlerProcess:
    message = fill(
        handler_pb2.HandlerProcess(oldest_age=duration(status.oldest_ms * 10**6) if status.in_handler else None),
        status, restart_count="restarts", start_time="started_ns", last_end_reason="last_reason", last_end_time="last_ended_ns",
        handled_count="handled", failed_count="failed", in_handler_count="in_handler", queued_count="queued", busy_share="busy",
        resident_bytes="resident",
    )  # fmt: skip
    for found, item in zip(message.handlers, status.handlers, strict=True):
        found.name, found.requests, found.responses = item.handler, "request" in item.directions, "response" in item.directions
    return message


class Certificates(CertificateServiceServicer):
    """Shows certificates, and reloads files."""

    def __init__(self, certificates: TlsStores, rotation: Rotation) -> None:
        self._certificates = certificates
        self._rotation = rotation

    async def ListCertificates(self, request: pb2.ListCertificatesRequest, context: Context) -> pb2.ListCertificatesResponse:
        """One page of certificates, of listeners, then of upstreams, in the order of the configuration."""
        statuses = self._certificates.statuses(self._rotation)
        chosen, token = page([(f"{place:06}", item) for place, item in enumerate(statuses)], request.page_size, request.page_token)
        return pb2.ListCertificatesResponse(certificates=map(_certificate, chosen), next_page_token=token)

    async def ReloadCertificates(self, request: pb2.ReloadCertificatesRequest, context: Context) -> pb2.ReloadCertificatesResponse:
        outcomes = await self._rotation.reload()
        note(after={f"{item.owner} ({item.kind})": item.result for item in outcomes if item.result != "unchanged"})
        return pb2.ReloadCertificatesResponse(reloads=map(_reload, outcomes))


def _certificate(status: CertificateStatus) -> pb2.Certificate:
    message = pb2.Certificate(begin_time=timestamp(int(status.begins) * 10**9), end_time=timestamp(int(status.ends) * 10**9))
    return fill(message, status, serial_number="serial", store_number="store", load_time="loaded_ns")


def _reload(outcome: ReloadOutcome) -> pb2.Reload:
    return fill(pb2.Reload(), outcome)
