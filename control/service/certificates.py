"""CertificateService."""

from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.service.convert import timestamp
from framegate.control.service.interceptor import Context, note
from framegate.control.service.update import fill
from framegate.control.service.validate import page
from framegate.control.status import CertificateStatus, ReloadOutcome
from framegate.control.v1 import certificate_service_pb2 as pb2
from framegate.control.v1.certificate_service_pb2_grpc import CertificateServiceServicer

__all__ = ["Certificates"]


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
