"""CertificateService."""

from framegate.control.rotation.rotation import Rotation
from framegate.control.rotation.tls_stores import TlsStores
from framegate.control.service.convert import timestamp
from framegate.control.service.interceptor import Context, note
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
    return pb2.Certificate(
        owner=status.owner,
        use=pb2.Certificate.Use.Value(f"USE_{status.use.upper()}"),
        file=status.file,
        position=status.position,
        subject=status.subject,
        names=status.names,
        issuer=status.issuer,
        serial_number=status.serial,
        fingerprint=status.fingerprint,
        begin_time=timestamp(int(status.begins) * 10**9),
        end_time=timestamp(int(status.ends) * 10**9),
        store_number=status.store,
        load_time=timestamp(status.loaded_ns),
        error=status.error,
    )


def _reload(outcome: ReloadOutcome) -> pb2.Reload:
    return pb2.Reload(
        owner=outcome.owner,
        kind=pb2.Reload.Kind.Value(f"KIND_{outcome.kind.upper()}"),
        result=pb2.Reload.Result.Value(f"RESULT_{outcome.result.upper()}"),
        file=outcome.file,
        reason=outcome.reason,
    )
