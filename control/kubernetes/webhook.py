"""``framegate webhook``: an HTTPS server for admission reviews, and its certificate.

The certificate comes from files, which cert-manager renews, or from a Secret that all replicas share. The first replica that finds no certificate
there, or one in the last third of its life, makes another with an authority of its own, whose key is never written. The API server trusts that
authority and the one before it, through the ``caBundle`` of the webhook's configuration, before the certificate is served.
"""

import asyncio
import base64
import datetime
import json
import logging
import os
import signal
import ssl
import tempfile
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from framegate.control.demo import certificates
from framegate.control.kubernetes.admission import Admission
from framegate.control.kubernetes.cluster import Cluster, ClusterError
from framegate.control.web import Server, bind, response

LIFETIME: Final = datetime.timedelta(days=90)
_POLL_S: Final = 20.0  # how often the certificate is read
_RETRY_S: Final = 1.0  # the same until there is one
_ENDING_S: Final = 5.0  # Reviews are answered that long after SIGTERM, while the API server still has this pod's address
_BODY_LIMIT: Final = 8 << 20
_JSON: Final = (("Content-Type", "application/json"),)
Pair = tuple[bytes, bytes]  # Certificates and key, in PEM

_log = logging.getLogger(__name__)


def files(certificate: Path, key: Path) -> Pair:
    """The contents of both files. Raises OSError."""
    return certificate.read_bytes(), key.read_bytes()


class OwnCertificate:
    """The certificate in a Secret of the webhook's namespace; Secret, Service and webhook configuration have one name."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._host = f"{name}.{cluster.namespace}.svc"
        self._secret = f"/api/v1/namespaces/{cluster.namespace}/secrets/{name}"
        self._configuration = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{name}"

    def __call__(self) -> Pair:
        """The present certificate, which the API server trusts; renewed if it is time. Raises ClusterError: the API server cannot be reached or
        refused a call; also when another replica was quicker.
        """
        secret = self._cluster.call("GET", self._secret)
        data = {name: base64.b64decode(value) for name, value in (secret.get("data") or {}).items()}
        if not _lasts(data.get("tls.crt", b""), self._host):
            data = self._made(data.get("ca.crt", b""))
            secret["data"] = {name: base64.b64encode(value).decode() for name, value in data.items()}
            self._cluster.call("PUT", self._secret, secret)  # refused if another replica has written since
            _log.info("a certificate for %s was made, valid for %d days", self._host, LIFETIME.days)
        self._trust(base64.b64encode(data["ca.crt"]).decode())
        return data["tls.crt"], data["tls.key"]

    def _made(self, before: bytes) -> dict[str, bytes]:
        """A certificate and its key, and its authority with the one before it."""
        with tempfile.TemporaryDirectory() as folder:
            made = certificates.create(Path(folder), LIFETIME, (self._host,), "framegate webhook")
            former = before.partition(b"-----END CERTIFICATE-----\n")
            authorities = made.ca.read_bytes() + former[0] + former[1]
            return {"tls.crt": made.server.read_bytes(), "tls.key": made.server_key.read_bytes(), "ca.crt": authorities}

    def _trust(self, bundle: str) -> None:
        webhooks = self._cluster.call("GET", self._configuration)["webhooks"]
        patch = [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
            for index, webhook in enumerate(webhooks)
            if webhook["clientConfig"].get("caBundle") != bundle
        ]
        if patch:
            self._cluster.call("PATCH", self._configuration, patch, content="application/json-patch+json")


def _lasts(certificate: bytes, host: str) -> bool:
    """Whether a certificate is for the host, and not in the last third of its life."""
    if not certificate:
        return False
    read = x509.load_pem_x509_certificate(certificate)
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    left = read.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return host in names and left > (read.not_valid_after_utc - read.not_valid_before_utc) / 3


def answer(admission: Admission, request: bytes) -> bytes:
    """The HTTP response to a request: a review (POST), or a probe (GET)."""
    head, _, body = request.partition(b"\r\n\r\n")
    if head.startswith(b"GET /healthz "):
        return response(HTTPStatus.OK)
    if not head.startswith((b"POST /inject ", b"POST /inject?")):
        return response(HTTPStatus.NOT_FOUND)
    try:
        review: dict[str, Any] = json.loads(body)
        if (review["apiVersion"], review["kind"]) != ("admission.k8s.io/v1", "AdmissionReview"):
            raise ValueError(f"{review['apiVersion']} {review['kind']} is no AdmissionReview of admission.k8s.io/v1")
        answered = admission.answer(review["request"])
    except (ValueError, KeyError, TypeError) as error:
        _log.warning("a request was refused: %r", error)
        return response(HTTPStatus.BAD_REQUEST, str(error).encode())
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answered}
    return response(HTTPStatus.OK, json.dumps(review).encode(), _JSON)


def _load(context: ssl.SSLContext, pair: Pair) -> None:
    """Use a certificate for new connections. Raises ssl.SSLError: certificate and key do not match, or are none."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("tls.crt", "tls.key")]
        for path, content in zip(paths, pair, strict=True):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(content)
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*paths)  # a pair that does not match would leave half of it in the other
        context.load_cert_chain(*paths)


async def serve(address: str, admission: Admission, pair: Callable[[], Pair]) -> None:
    """Answer reviews until SIGTERM or SIGINT. The port is open as soon as there is a certificate. ``pair``: returns the present certificate; called
    in a thread. Raises OSError: the address cannot be used.
    """
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server: Server | None = None
    shown: Pair | None = None
    try:
        while not ended.is_set():
            try:
                if (found := await asyncio.to_thread(pair)) != shown:
                    _load(context, found)
                    shown = found
                    _log.info("certificate loaded")
            except (ClusterError, OSError, ValueError) as error:  # ssl.SSLError is an OSError
                _log.warning("the certificate cannot be read: %s", error)
            if shown is not None and server is None:
                server = Server(bind(address), lambda request: answer(admission, request), body_limit=_BODY_LIMIT, tls=context)
                await server.start()
                _log.info("listening on %s", address)
            try:
                await asyncio.wait_for(ended.wait(), _RETRY_S if shown is None else _POLL_S)
            except TimeoutError:
                continue
            if server is not None:
                await asyncio.sleep(_ENDING_S)
    finally:
        if server is not None:
            server.stop()
