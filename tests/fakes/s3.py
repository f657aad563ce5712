"""An S3 server (moto's) in this process, with faults on the way to it; and what it lacks to be one of Google Cloud Storage for obstore's client."""

import contextlib
import io
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest
from werkzeug.serving import WSGIRequestHandler, make_server

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
BUCKET = "taps"
ABORTED = 100  # for a fault: the connection ends within the body
_AUTHORIZED = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"  # for moto
REFUSALS = {503: "503 Slow Down", 403: "403 Forbidden"}


class Quiet(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing."""


class S3:
    scheme = "s3"

    def __init__(self, address: str = "127.0.0.1") -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self._app: Wsgi = DomainDispatcherApplication(create_backend_app)
        self.requests: list[tuple[str, str]] = []  # method and path of each request
        # is asked about each request; returns the status of a refusal, a number of body bytes below 100 that arrive, ABORTED, or None
        self.fault: Callable[[str, str], int | None] = lambda method, path: None
        self.refuses_done = False  # whether what is refused was done nevertheless
        self.held = threading.Event()  # requests wait while it is not set
        self.held.set()
        self.waiting = threading.Event()
        self._address = address
        self._port = 0
        self.start()
        self.endpoint = f"http://{address}:{self._port}"  # its URL
        self.url = f"{self.scheme}://{BUCKET}/production"  # of a prefix in its bucket

    def start(self) -> None:
        """Listen; at the same port, if it was stopped."""
        self._server = make_server(self._address, self._port, self._serve, threaded=True, request_handler=Quiet)
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self._port = self._server.port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self._up = True

    def stop(self) -> None:
        """Refuse connections. Requests under way get no answer, whether they were done or not. What is stored stays."""
        self._up = False
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _serve(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        made = self._answer(environ, start)
        if not self._up or made is None:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)  # else it would wait for the next request
            raise ConnectionAbortedError
        return made

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes] | None:
        """None: there is none."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.requests.append((method, path))
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if not self.held.is_set():
            self.waiting.set()
            self.held.wait(20)
        fault = self.fault(method, path)
        if fault in REFUSALS:
            if self.refuses_done:
                environ["wsgi.input"] = io.BytesIO(body)
                list(self._app(environ, lambda *_: None))
            start(REFUSALS[fault], [("Content-Type", "application/xml"), ("Content-Length", "0")])
            return [b""]
        if fault == ABORTED:
            return None
        if fault is not None:
            body = body[:fault]
            environ["CONTENT_LENGTH"] = str(len(body))
        environ["wsgi.input"] = io.BytesIO(body)
        return self._app(environ, start)

    def put(self, path: str, content: bytes | None) -> None:
        """Replace or, with None, delete an object, by the path of its request."""
        import obstore

        from framegate.proxy.tap.store import _client

        name = path.removeprefix(f"/{BUCKET}/")
        if content is None:
            obstore.delete(_client(f"{self.scheme}://{BUCKET}"), name)
        else:
            obstore.put(_client(f"{self.scheme}://{BUCKET}"), name, content)

    def environment(self) -> Mapping[str, str]:
        """What a client needs."""
        return {
            "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-example",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def close(self) -> None:
        self.held.set()
        if self._up:
            self.stop()


class Gcs(S3):
    """The XML API of Google Cloud Storage: as S3's, but a request's condition names the object's generation, which grows with each write."""

    scheme = "gs"

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._generations: dict[str, int] = {}  # by path
        self._writes = 0
        self._lock = threading.Lock()
        super().__init__(address)

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes] | None:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        wanted = environ.get("HTTP_X_GOOG_IF_GENERATION_MATCH")
        environ["HTTP_AUTHORIZATION"] = _AUTHORIZED

        def begin(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            if status.startswith("2") and method == "PUT":
                self._writes += 1
                self._generations[path] = self._writes
            if status.startswith("2") and method == "DELETE":
                self._generations.pop(path, None)
            if path in self._generations:
                headers = [*headers, ("x-goog-generation", str(self._generations[path]))]
            return start(status, headers, *more)

        if method not in ("PUT", "DELETE"):
            return super()._answer(environ, begin)
        with self._lock:
            if wanted is not None and int(wanted) != self._generations.get(path, 0):
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start("412 Precondition Failed", [("Content-Length", "0")])
                return [b""]
            return super()._answer(environ, begin)

    def environment(self) -> Mapping[str, str]:
        key = {"gcs_base_url": self.endpoint, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key), "AWS_ALLOW_HTTP": "true"}


@contextlib.contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch, address: str = "127.0.0.1", kind: type[S3] = S3) -> Iterator[S3]:
    """A server with an empty bucket, for this process and its children; of another ``address`` than the loopback one also for others."""
    import urllib.request

    from framegate.proxy.tap import store

    made = kind(address)
    try:
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)
        store._client.cache_clear()  # clients have the environment of their making
        reset = urllib.request.Request(f"{made.endpoint}/moto-api/reset", method="POST", data=b"")
        bucket = urllib.request.Request(f"{made.endpoint}/{BUCKET}", method="PUT")
        for request in (reset, bucket):
            with urllib.request.urlopen(request):
                pass
        yield made
    finally:
        made.close()
        store._client.cache_clear()
