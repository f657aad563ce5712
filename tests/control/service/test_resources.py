"""Listeners, upstreams, brokers, handler processes and certificates are shown; files are reloaded."""

import dataclasses

import grpc

from framegate.control.status import ReloadOutcome
from framegate.control.v1 import certificate_service_pb2 as pb2
from framegate.control.v1 import handler_service_pb2 as handler_pb2
from framegate.control.v1 import listener_service_pb2 as listener_pb2
from framegate.control.v1 import upstream_service_pb2 as upstream_pb2
from framegate.control.v1.channel_service_pb2 import CAUSE_FRAME_TOO_LARGE, SIDE_DOWNSTREAM
from framegate.control.v1.proxy_service_pb2 import GetProxyRequest
from framegate.proxy.network.connection_id import parse_connection_id
from tests.control.service.served import code_of, refused, served
from tests.fakes.plane import broker_status, certificate, channel_row, handler_process
from tests.fakes.rows import OPENED_NS, refused_frame_row
from tests.fakes.serving import Serving


@served()
async def test_listeners_are_listed_by_name_with_what_is_open(at: Serving) -> None:
    at.plane.add(channel_row("0-1-1", "plain"))
    listed = (await at.api.ListListeners(listener_pb2.ListListenersRequest())).listeners
    assert [(item.name, item.address, item.protocol) for item in listed] == [
        ("kafka", "127.0.0.1:9093", listener_pb2.PROTOCOL_KAFKA),
        ("plain", "127.0.0.1:9094", listener_pb2.PROTOCOL_FRAMED),
    ]
    assert {(item.request_forwarding, item.response_forwarding) for item in listed} == {
        (listener_pb2.FORWARDING_WHOLE, listener_pb2.FORWARDING_CUT_THROUGH)
    }
    assert (listed[1].open_connection_count, listed[1].max_connection_count, listed[1].accepting) == (1, 10, True)


@served()
async def test_a_listener_is_found_by_its_name_only(at: Serving) -> None:
    assert (await at.api.GetListener(listener_pb2.GetListenerRequest(name="plain"))).listener.upstream == "brokers"
    for name, code in (("nobody", grpc.StatusCode.NOT_FOUND), ("", grpc.StatusCode.INVALID_ARGUMENT)):
        assert await code_of(at.api.GetListener(listener_pb2.GetListenerRequest(name=name))) is code


@served()
async def test_upstreams_are_listed_and_got(at: Serving) -> None:
    (listed,) = (await at.api.ListUpstreams(upstream_pb2.ListUpstreamsRequest())).upstreams
    assert listed == (await at.api.GetUpstream(upstream_pb2.GetUpstreamRequest(name="brokers"))).upstream
    assert (list(listed.endpoints), list(listed.addresses), listed.max_receive_size_bytes) == (["broker:9092"], ["10.1.0.1:9092"], 2**31 - 1)
    (down,) = listed.down_endpoints
    assert [(down.address, down.reason, down.processor_count)] == [("10.1.0.2:9092", upstream_pb2.Endpoint.REASON_REFUSED, 2)]
    assert await code_of(at.api.GetUpstream(upstream_pb2.GetUpstreamRequest(name="nobody"))) is grpc.StatusCode.NOT_FOUND


@served()
async def test_brokers_are_listed_in_pages(at: Serving) -> None:
    at.plane.brokers = [broker_status(0, rack="a", connections=2), broker_status(1, state="down", reason="refused"), broker_status(5, state="gone")]
    first = await at.api.ListBrokers(upstream_pb2.ListBrokersRequest(upstream="brokers", page_size=2))
    rest = await at.api.ListBrokers(upstream_pb2.ListBrokersRequest(page_size=2, page_token=first.next_page_token))
    found = [*first.brokers, *rest.brokers]
    assert [(item.node_id, item.state, item.reason) for item in found] == [
        (0, upstream_pb2.Broker.STATE_UP, ""),
        (1, upstream_pb2.Broker.STATE_DOWN, "refused"),
        (5, upstream_pb2.Broker.STATE_GONE, ""),
    ]
    assert (found[0].upstream, found[0].listener, found[0].rack, found[0].open_connection_count) == ("brokers", "kafka", "a", 2)
    assert (found[0].address, found[0].advertised_address) == ("b0:9092", "edge:9100")
    assert rest.next_page_token == ""
    assert await code_of(at.api.ListBrokers(upstream_pb2.ListBrokersRequest(upstream="x"))) is grpc.StatusCode.NOT_FOUND
    assert await code_of(at.api.ListBrokers(upstream_pb2.ListBrokersRequest(page_size=-1))) is grpc.StatusCode.INVALID_ARGUMENT


@served()
async def test_handler_processes_are_listed_with_their_handlers(at: Serving) -> None:
    at.plane.handlers = [handler_process()]
    (found,) = (await at.api.ListHandlers(handler_pb2.ListHandlersRequest())).processes
    assert (found.slot, found.generation, found.state, found.restart_count) == (0, 7, handler_pb2.HandlerProcess.STATE_RUNNING, 1)
    assert (found.start_time.ToNanoseconds(), found.last_end_time.ToNanoseconds()) == (OPENED_NS, OPENED_NS - 10**9)
    assert (found.last_end_reason, found.handled_count, found.failed_count) == (handler_pb2.HandlerProcess.END_REASON_TIMEOUT, 500, 3)
    assert (found.in_handler_count, found.queued_count, found.oldest_age.ToMilliseconds(), found.busy_share) == (1, 2, 40, 0.25)
    assert found.resident_bytes == 30 * 2**20
    (echo,) = found.handlers
    assert (echo.listener, echo.name) == ("plain", "framegate.proxy.handler.echo:echo")
    assert (echo.requests, echo.responses, echo.description) == (True, False, "Answers every frame.")


@served()
async def test_unknown_values_are_absent(at: Serving) -> None:
    at.plane.handlers = [
        handler_process(pid=0, state="starting", last_reason="", last_ended_ns=0, started_ns=0, in_handler=0, oldest_ms=0, handlers=())
    ]
    (found,) = (await at.api.ListHandlers(handler_pb2.ListHandlersRequest())).processes
    assert not any(found.HasField(name) for name in ("start_time", "last_end_time", "oldest_age"))
    assert found.state == handler_pb2.HandlerProcess.STATE_STARTING


@served()
async def test_handler_processes_come_in_pages_by_slot(at: Serving) -> None:
    assert (await at.api.ListHandlers(handler_pb2.ListHandlersRequest())).processes == []
    at.plane.handlers = [handler_process(slot) for slot in range(12)]
    first = await at.api.ListHandlers(handler_pb2.ListHandlersRequest(page_size=10))
    second = await at.api.ListHandlers(handler_pb2.ListHandlersRequest(page_size=10, page_token=first.next_page_token))
    assert [item.slot for item in (*first.processes, *second.processes)] == list(range(12))
    assert second.next_page_token == ""
    for request in (handler_pb2.ListHandlersRequest(page_size=-1), handler_pb2.ListHandlersRequest(page_token="?")):
        assert await code_of(at.api.ListHandlers(request)) is grpc.StatusCode.INVALID_ARGUMENT


@served()
async def test_refused_frames_of_a_listener_are_pages_the_latest_first(at: Serving) -> None:
    for number in range(3):
        at.plane.parts.refused_frames.note(refused_frame_row(id=int(parse_connection_id(f"0-1-{number}"))))
    first = await at.api.ListRefusedFrames(listener_pb2.ListRefusedFramesRequest(listener="kafka", page_size=2))
    rest = await at.api.ListRefusedFrames(listener_pb2.ListRefusedFramesRequest(listener="kafka", page_token=first.next_page_token))
    assert [item.channel_id for item in (*first.refused_frames, *rest.refused_frames)] == ["0-1-2", "0-1-1", "0-1-0"]
    found = first.refused_frames[0]
    assert (found.peer_address, found.principal, found.client_id, found.side) == ("10.0.0.9:51000", "CN=client", "billing-7", SIDE_DOWNSTREAM)
    assert (found.cause, found.size_bytes, found.limit_bytes) == (CAUSE_FRAME_TOO_LARGE, 2_000_000, 1_000_000)
    assert (found.head.hex(), found.time.ToNanoseconds()) == ("001e8480000000030000000700046164", OPENED_NS)
    assert list((await at.api.ListRefusedFrames(listener_pb2.ListRefusedFramesRequest(listener="plain"))).refused_frames) == []
    for listener, answer in (
        ("", (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", ["listener"])),
        ("none", (grpc.StatusCode.NOT_FOUND, "LISTENER_NOT_FOUND", [])),
    ):
        assert await refused(at.api.ListRefusedFrames(listener_pb2.ListRefusedFramesRequest(listener=listener))) == answer


@served()
async def test_certificates_are_listed_in_their_order_by_pages(at: Serving) -> None:
    at.plane.certificates = [certificate("listener/kafka"), certificate("listener/kafka", use="client_ca"), certificate("upstream/brokers")]
    first = await at.api.ListCertificates(pb2.ListCertificatesRequest(page_size=2))
    rest = await at.api.ListCertificates(pb2.ListCertificatesRequest(page_token=first.next_page_token))
    listed = [*first.certificates, *rest.certificates]
    assert [(item.owner, pb2.Certificate.Use.Name(item.use)) for item in listed] == [
        ("listener/kafka", "USE_CERTIFICATE"),
        ("listener/kafka", "USE_CLIENT_CA"),
        ("upstream/brokers", "USE_CERTIFICATE"),
    ]
    assert rest.next_page_token == ""
    shown = listed[0]
    assert (shown.subject, list(shown.names), shown.issuer, shown.serial_number) == ("CN=a", ["DNS:a"], "CN=ca", "1f")
    assert (shown.begin_time.seconds, shown.end_time.seconds, shown.load_time.seconds, shown.store_number) == (1, 4_000_000_000, 2, 3)
    assert (shown.fingerprint, shown.file, shown.position, shown.error) == ("f" * 64, "/tls.crt", 0, "")


@served()
async def test_a_reload_says_what_became_of_each_and_leaves_an_audit_row(at: Serving) -> None:
    at.plane.outcomes = [
        ReloadOutcome(owner="a", kind="tls", result="replaced"),
        ReloadOutcome(owner="b", kind="sasl", result="refused", file="/users", reason="is none"),
        ReloadOutcome(owner="c", kind="tls", result="unchanged"),
    ]
    answer = await at.api.ReloadCertificates(pb2.ReloadCertificatesRequest(reason="rotated"))
    assert [pb2.Reload.Result.Name(item.result) for item in answer.reloads] == ["RESULT_REPLACED", "RESULT_REFUSED", "RESULT_UNCHANGED"]
    assert (answer.reloads[1].owner, pb2.Reload.Kind.Name(answer.reloads[1].kind), answer.reloads[1].file, answer.reloads[1].reason) == (
        "b",
        "KIND_SASL",
        "/users",
        "is none",
    )
    (row,) = at.plane.audits
    assert row["after"] == {"a (tls)": "replaced", "b (sasl)": "refused"}
    assert await code_of(at.api.ReloadCertificates(pb2.ReloadCertificatesRequest(reason="x" * 257))) is grpc.StatusCode.INVALID_ARGUMENT


@served()
async def test_the_proxy_tells_what_ends_first_and_what_is_refused(at: Serving) -> None:
    assert not (await at.api.GetProxy(GetProxyRequest())).proxy.HasField("certificate_end_time")
    ended = dataclasses.replace(certificate("upstream/brokers"), ends=5.0)
    at.plane.certificates = [
        certificate("listener/kafka", error="/tls.key is not the key"),
        ended,
        certificate("upstream/brokers", use="ca", ends=1.0),
    ]
    proxy = (await at.api.GetProxy(GetProxyRequest())).proxy
    assert (proxy.certificate_end_time.seconds, proxy.certificate_owner) == (5, "upstream/brokers")
    assert list(proxy.warnings)[-1:] == ["what lies in the files of listener/kafka is not in force: /tls.key is not the key"]
