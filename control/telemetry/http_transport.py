"""Carries an export over HTTP."""

import gzip
import http.client
import socket
import ssl
import threading
import urllib.parse

from control.telemetry.attempt import MAX_ANSWER, Outcome, tls_context
from control.telemetry.environment import Target

__all__ = ["HttpTransport"]


class HttpTransport:
    """A connection for each export: one every few seconds, so that keeping one would save nothing, and none can have died meanwhile.

    Raises OSError: certificates cannot be used.
    """

    def __init__(self, target: Target) -> None:
        url = urllib.parse.urlsplit(target.endpoint)
        self._host = url.hostname or ""
        self._port = url.port or (443 if target.secure else 80)
        self._path = url.path or "/"
        self._context = tls_context(target) if target.secure else None
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
            answer = _read(response)
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
            return _broken(error)
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


def _read(response: http.client.HTTPResponse) -> bytes:
    """As much as is judged; one that ends before that without being whole raises IncompleteRead."""
    answer = response.read(MAX_ANSWER + 1)
    if response.length and len(answer) <= MAX_ANSWER:
        raise http.client.IncompleteRead(answer, response.length)
    return answer


def _broken(error: http.client.HTTPException) -> Outcome:
    if isinstance(error, (http.client.RemoteDisconnected, http.client.IncompleteRead)):  # it is being restarted, and will be back
        return Outcome("unavailable", "the connection ended before the answer did", again=True)
    return Outcome("other", f"no HTTP: {error!r}"[:100])


def _judged(response: http.client.HTTPResponse, answer: bytes) -> Outcome:
    status = response.status
    if status == http.client.OK:
        if len(answer) > MAX_ANSWER:
            return Outcome("other", f"the answer is longer than {MAX_ANSWER} bytes")
        return Outcome("", answer=answer)
    text = f"HTTP {status} {response.reason}"[:500]
    if status in (429, 502, 503, 504):
        told = response.getheader("Retry-After", "").strip()
        return Outcome("unavailable", text, again=True, pause_s=float(told) if told.isdecimal() and len(told) < 9 else None)
    return Outcome("refused" if 300 <= status < 500 else "other", text)
