"""Carries one export to a collector and judges the answer. Needs the extra ``otlp``'s protobuf only for the details of errors.

OpenTelemetry's own exporters are not used for this: they take no notice of a partial success, wait by the wall clock, and read an answer over HTTP
however long it is. A collector gets ``timeout_s`` for an export with all its attempts, and an answer of it at most 64 KiB of memory.
"""

import gzip
import http.client
import logging
import random
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from control.errors import StartError
from control.telemetry.environment import Target

__all__ = ["Carrier", "Outcome", "Transport", "transport"]

_MAX_ANSWER: Final = 64 * 1024
_SERVICES: Final = {"metrics": "metrics.v1.MetricsService", "traces": "trace.v1.TraceService", "logs": "logs.v1.LogsService"}
_FIRST_PAUSE_S: Final = 1.0
_LAST_PAUSE_S: Final = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one attempt.

    Attributes:
        end: one of ``proxy.cells.metrics.EXPORT_ERRORS``.
        text: why, for people; it has none of our headers.
        answer: what the collector said; only of a good end.
        again: whether another attempt makes sense.
        pause_s: how long the collector asks to wait before it; none: it does not say.
    """

    end: str
    text: str = ""
    answer: bytes = b""
    again: bool = False
    pause_s: float | None = None


class Transport(Protocol):
    """Sends once."""

    def send(self, request: bytes, timeout_s: float) -> Outcome:
        """One attempt, over in about ``timeout_s``."""

    def close(self) -> None:
        """Ends what is under way, and the connection. Any thread."""


class Carrier:
    """Sends one export after the other, each as often as it makes sense and is allowed.

    Args:
        transport: to one collector.
        timeout_s: of one export, with all its attempts.
        clock: seconds; steps of the wall clock must not move it.
    """

    def __init__(self, transport: Transport, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._clock = clock
        self._closed = threading.Event()

    def carry(self, request: bytes) -> Outcome:
        """Send, and on what passes try again, until the time is over or ``close`` is called."""
        deadline = self._clock() + self._timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            if self._closed.is_set():
                return Outcome("other", "telemetry ends")
            outcome = self._transport.send(request, max(deadline - self._clock(), 0.001))
            wait_s = pause_s * random.uniform(0.8, 1.2) if outcome.pause_s is None else outcome.pause_s
            if not outcome.again or wait_s > deadline - self._clock():
                return outcome
            if self._closed.wait(wait_s):
                return outcome
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def close(self) -> None:
        """End what is under way; nothing is sent any more. Any thread."""
        self._closed.set()
        self._transport.close()


def transport(target: Target) -> Transport:
    """The way to a collector. It connects when something is sent.

    Raises:
        StartError: certificates or the key cannot be used.
    """
    try:
        return _Grpc(target) if target.protocol == "grpc" else _Http(target)
    except (OSError, ssl.SSLError) as error:
        text = f"the certificates of the collector for {target.signal} ({target.endpoint}) cannot be used: {error}"
        raise StartError(text, reason="TELEMETRY_CERTIFICATE_UNUSABLE", signal=target.signal) from error


class _Grpc:
    def __init__(self, target: Target) -> None:
        import grpc

        self._grpc = grpc
        self._metadata = target.headers
        self._method = f"/opentelemetry.proto.collector.{_SERVICES[target.signal]}/Export"
        options = [
            ("grpc.max_receive_message_length", _MAX_ANSWER),
            ("grpc.initial_reconnect_backoff_ms", 1_000),
            ("grpc.max_reconnect_backoff_ms", 10_000),  # gRPC's own most is two minutes: a collector that is back would wait for us
            ("grpc.enable_retries", 0),
        ]
        compression = grpc.Compression.Gzip if target.gzip else grpc.Compression.NoCompression
        if target.secure:
            _tls_context(target)  # says what is wrong with the files; gRPC would not
            roots, key, chain = (_read(path) for path in (target.certificate, target.client_key, target.client_certificate))
            credentials = grpc.ssl_channel_credentials(roots, key, chain)
            self._channel = grpc.secure_channel(target.endpoint, credentials, options, compression)
        else:
            self._channel = grpc.insecure_channel(target.endpoint, options, compression)
        self._call: Any = self._channel.unary_unary(self._method)

    def send(self, request: bytes, timeout_s: float) -> Outcome:
        try:
            answer: bytes = self._call(request, timeout=timeout_s, metadata=self._metadata)
        except self._grpc.RpcError as error:
            return self._failed(error)
        except ValueError:  # the channel is closed
            return Outcome("other", "telemetry ends")
        return Outcome("", answer=answer)

    def _failed(self, error: Any) -> Outcome:
        code = self._grpc.StatusCode
        found = error.code()
        text = f"{found.name}: {error.details()}"[:500]
        match found:
            case code.UNAVAILABLE:
                return Outcome("unavailable", text, again=True, pause_s=_pause(error))
            case code.DEADLINE_EXCEEDED:
                return Outcome("timeout", text, again=True)
            case code.RESOURCE_EXHAUSTED:
                pause_s = _pause(error)
                return Outcome("refused" if pause_s is None else "unavailable", text, again=pause_s is not None, pause_s=pause_s)
            case code.ABORTED | code.OUT_OF_RANGE | code.DATA_LOSS:
                return Outcome("unavailable", text, again=True, pause_s=_pause(error))
            case (
                code.UNAUTHENTICATED | code.PERMISSION_DENIED | code.INVALID_ARGUMENT | code.UNIMPLEMENTED | code.NOT_FOUND | code.FAILED_PRECONDITION
            ):
                return Outcome("refused", text)
        return Outcome("other", text)

    def close(self) -> None:
        self._channel.close()


def _pause(error: Any) -> float | None:
    """How long the collector asks to wait: ``google.rpc.RetryInfo`` among the details of its status."""
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

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


def _tls_context(target: Target) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=target.certificate)
    if target.client_certificate is not None:
        context.load_cert_chain(target.client_certificate, target.client_key)
    return context


class _Http:
    """A connection for each export: one every few seconds, so that keeping one would save nothing, and none can have died meanwhile."""

    def __init__(self, target: Target) -> None:
        url = urllib.parse.urlsplit(target.endpoint)
        self._host = url.hostname or ""
        self._port = url.port or (443 if target.secure else 80)
        self._path = url.path or "/"
        self._context = _tls_context(target) if target.secure else None
        self._gzip = target.gzip
        self._headers = {**dict(target.headers), "content-type": "application/x-protobuf", "connection": "close", "user-agent": "framegate"}
        if target.gzip:
            self._headers["content-encoding"] = "gzip"
        self._lock = threading.Lock()
        self._under_way: http.client.HTTPConnection | None = None
        self._closed = False

    def send(self, request: bytes, timeout_s: float) -> Outcome:
        body = gzip.compress(request, 6) if self._gzip else request
        connection: http.client.HTTPConnection
        if self._context is not None:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._context)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        late = threading.Event()
        # A socket's time-out is for one step: a collector that sends a byte now and then would never be late.
        timer = threading.Timer(timeout_s, self._cut, (connection, late))
        timer.daemon = True
        timer.start()
        try:
            with self._lock:
                if self._closed:
                    return Outcome("other", "telemetry ends")
                self._under_way = connection
            connection.request("POST", self._path, body, self._headers)
            response = connection.getresponse()
            answer = response.read(_MAX_ANSWER + 1)
            if late.is_set():
                return Outcome("timeout", "the answer did not come in time", again=True)
            return _judged(response, answer)
        except TimeoutError:
            return Outcome("timeout", "nobody answered in time", again=True)
        except ssl.SSLCertVerificationError as error:
            return Outcome("refused", f"its certificate: {error.verify_message}")
        except http.client.HTTPException as error:
            if late.is_set():
                return Outcome("timeout", "the answer did not come in time", again=True)
            return Outcome("unavailable" if isinstance(error, http.client.RemoteDisconnected) else "other", f"no HTTP: {error!r}"[:500])
        except OSError as error:
            if late.is_set():
                return Outcome("timeout", "the answer did not come in time", again=True)
            return Outcome("unavailable", str(error), again=True)
        finally:
            timer.cancel()
            with self._lock:
                self._under_way = None
            connection.close()

    @staticmethod
    def _cut(connection: http.client.HTTPConnection, late: threading.Event) -> None:
        late.set()
        _shut(connection)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._under_way is not None:
                _shut(self._under_way)


def _shut(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is None:  # it is still connecting, for which the socket's time-out is enough, or has ended
        return
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended by itself
        return


def _judged(response: http.client.HTTPResponse, answer: bytes) -> Outcome:
    status = response.status
    if status == http.client.OK:
        if len(answer) > _MAX_ANSWER:
            return Outcome("other", f"the answer is longer than {_MAX_ANSWER} bytes")
        return Outcome("", answer=answer)
    text = f"HTTP {status} {response.reason}"[:500]
    if status in (429, 502, 503, 504):
        told = response.getheader("Retry-After", "").strip()
        return Outcome("unavailable", text, again=True, pause_s=float(told) if told.isdecimal() and len(told) < 9 else None)
    return Outcome("refused" if 300 <= status < 500 else "other", text)
