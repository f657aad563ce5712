"""CertificateService over a real socket."""

import dataclasses

import grpc

from framegate.control.status import ReloadOutcome
from framegate.control.v1 import certificate_service_pb2 as pb2
from framegate.control.v1.proxy_service_pb2 import GetProxyRequest
from tests.control.service.served import code_of, served
from tests.fakes.plane import certificate
from tests.fakes.serving import Serving


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
async def test_the_proxy_tells_what_ends_first_what_ends_soon_and_what_is_refused(at: Serving) -> None:
    assert not (await at.api.GetProxy(GetProxyRequest())).proxy.HasField("certificate_end_time")
    ended = dataclasses.replace(certificate("upstream/brokers"), ends=5.0)
    at.plane.certificates = [
        certificate("listener/kafka", error="/tls.key is not the key"),
        ended,
        certificate("upstream/brokers", use="ca", ends=1.0),
    ]
    proxy = (await at.api.GetProxy(GetProxyRequest())).proxy
    assert (proxy.certificate_end_time.seconds, proxy.certificate_owner) == (5, "upstream/brokers")
    assert list(proxy.warnings)[-2:] == [
        "the certificate of upstream/brokers has ended",
        "what lies in the files of listener/kafka is not in force: /tls.key is not the key",
    ]
