"""Carries an export over gRPC."""

import socket
import ssl
import urllib.parse
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from control.telemetry.attempt import MAX_ANSWER, Outcome, tls_context
from control.telemetry.environment import Target

__all__ = ["GrpcTransport"]

_UNVERIFIED: Final = "CERTIFICATE_VERIFY_FAILED"
_LOOK_S: Final = 1.0
_WRONG_NAME: Final = "Hostname Verification Check failed"
_SERVICES: Final = {"metrics": "metrics.v1.MetricsService", "traces": "trace.v1.TraceService", "logs": "logs.v1.LogsService"}


class GrpcTransport:
    """One channel, which connects again by itself. Raises OSError: certificates cannot be used."""

    def __init__(self, target: Target) -> None:
        self._metadata = target.headers
        self._method = f"/opentelemetry.proto.collector.{_SERVICES[target.signal]}/Export"
        options = [
            ("grpc.max_receive_message_length", MAX_ANSWER),
            ("grpc.initial_reconnect_backoff_ms", 1_000),
            ("grpc.max_reconnect_backoff_ms", 10_000),  # gRPC's own most is two minutes: a collector that is back would wait for us
            ("grpc.enable_retries", 0),
        ]
        compression = grpc.Compression.Gzip if target.gzip else grpc.Compression.NoCompression
        self._closed = False
        self._context: ssl.SSLContext | None = None
        if target.secure:
            self._context = tls_context(target)  # says what is wrong with the files; gRPC would not
            self._context.set_alpn_protocols(["h2"])
            url = urllib.parse.urlsplit(f"//{target.endpoint}")
            self._host, self._port = url.hostname or "", url.port or 443
            roots, key, chain = (_read(path) for path in (target.certificate, target.client_key, target.client_certificate))
            credentials = grpc.ssl_channel_credentials(roots, key, chain)
            self._channel = grpc.secure_channel(target.endpoint, credentials, options, compression)
        else:
            self._channel = grpc.insecure_channel(target.endpoint, options, compression)
        self._call: Any = self._channel.unary_unary(self._method)

    def send(self, request: bytes, timeout_s: float) -> Outcome:
        try:
            answer: bytes = self._call(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            return self._failed(error)
        except ValueError:  # the channel is closed
            return Outcome("other", "telemetry ends")
        return Outcome("", answer=answer)

    def _failed(self, error: Any) -> Outcome:
        code = grpc.StatusCode
        found = error.code()
        text = f"{found.name}: {error.details()}"[:500]
        match found:
            case code.UNAVAILABLE if verdict := _verdict(error.details() or "") or self._looked_at():
                return Outcome("refused", f"its certificate: {verdict}")
            case code.UNAVAILABLE:
                return Outcome("unavailable", text, again=True, pause_s=_pause(error))
            case code.DEADLINE_EXCEEDED:
                return Outcome("timeout", text, again=True)
            case code.RESOURCE_EXHAUSTED:
                pause_s = _pause(error)
                return Outcome("refused" if pause_s is None else "unavailable", text, again=pause_s is not None, pause_s=pause_s)
            case code.CANCELLED | code.ABORTED | code.OUT_OF_RANGE | code.DATA_LOSS:
                return Outcome("unavailable", text, again=True, pause_s=_pause(error))
            case (
                code.UNAUTHENTICATED | code.PERMISSION_DENIED | code.INVALID_ARGUMENT | code.UNIMPLEMENTED | code.NOT_FOUND | code.FAILED_PRECONDITION
            ):
                return Outcome("refused", text)
        return Outcome("other", text)

    def _looked_at(self) -> str:
        """As ``_verdict``, of who is there. Of a host with several addresses gRPC says what came of the last, behind which the certificate of another
        may be hidden.
        """
        if self._context is None or self._closed:
            return ""
        try:
            with (
                socket.create_connection((self._host, self._port), _LOOK_S) as connection,
                self._context.wrap_socket(connection, server_hostname=self._host),
            ):
                return ""
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except (OSError, ValueError):  # nobody is there, it is no name, or something else: what gRPC says stands
            return ""

    def close(self) -> None:
        self._closed = True
        self._channel.close()


def _verdict(details: str) -> str:
    """What is wrong with the collector's certificate, in OpenSSL's words or gRPC's; empty: it is something else. gRPC has only text for it."""
    if _UNVERIFIED in details:
        return details.partition(_UNVERIFIED)[2].partition(": OK")[0].strip(": ") or "not verified"
    return _WRONG_NAME if _WRONG_NAME in details else ""


def _pause(error: Any) -> float | None:
    """How long the collector asks to wait: ``google.rpc.RetryInfo`` among the details of its status."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            info = RetryInfo()
            try:
                for detail in Status.FromString(value).details:
                    if detail.Unpack(info):
                        return max(0.0, float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9))
            except DecodeError:
                return None
    return None


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()
