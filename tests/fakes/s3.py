"""An S3 server in this process, with faults on the way to it. It knows the requests of our clients: whole objects, ranges, lists, deletions."""

import base64
import contextlib
import email.utils
import hashlib
import re
import socket
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import pytest

BUCKET = "taps"
ABORTED = 100  # for a fault: the connection ends within the body
REFUSALS = {503: "SlowDown", 403: "AccessDenied"}


class Object(NamedTuple):
    content: bytes
    modified_s: float
    tag: str


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


def error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode(), {"Content-Type": "application/xml"})


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: "Server"

    def answer(self) -> None:
        made = self.server.s3.answer(self)
        if made is None:  # there is none: else the client would wait
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(made.status)
        for name, value in {"Content-Length": str(len(made.body)), **made.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(made.body)

    do_GET = do_HEAD = do_PUT = do_POST = answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    s3: "S3"

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: the client has gone."""


class S3:
    def __init__(self, address: str = "127.0.0.1") -> None:
        self.requests: list[tuple[str, str]] = []  # method and path of each request
        # is asked about each request; returns the status of a refusal, a number of body bytes below 100 that arrive, ABORTED, or None
        self.fault: Callable[[str, str], int | None] = lambda method, path: None
        self.refuses_done = False  # whether what is refused was done nevertheless
        self.held = threading.Event()  # requests wait while it is not set
        self.held.set()
        self.waiting = threading.Event()
        self._objects: dict[str, dict[str, Object]] = {BUCKET: {}}  # by bucket
        self._lock = threading.Lock()  # of the objects
        self._address = address
        self._port = 0
        self.start()
        self.endpoint = f"http://{address}:{self._port}"  # its URL
        self.url = f"s3://{BUCKET}/production"  # of a prefix in its bucket

    def start(self) -> None:
        """Listen; at the same port, if it was stopped."""
        self._server = Server((self._address, self._port), Handler)
        self._server.s3 = self
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self._up = True

    def stop(self) -> None:
        """Refuse connections. Requests under way get no answer, whether they were done or not. What is stored stays."""
        self._up = False
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: Handler) -> Answer | None:
        """Do what a request asks for. None: it gets no answer."""
        url = urllib.parse.urlsplit(request.path)
        method, path = request.command, urllib.parse.unquote(url.path)
        self.requests.append((method, path))
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if not self.held.is_set():
            self.waiting.set()
            self.held.wait(20)
        fault = self.fault(method, path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        if fault in REFUSALS:
            if self.refuses_done:
                self._do(method, path, query, request.headers, body)
            return error(fault, REFUSALS[fault])
        if fault == ABORTED:
            return None
        made = self._do(method, path, query, request.headers, body if fault is None else body[:fault])
        return made if self._up else None

    def _do(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes) -> Answer:
        bucket, _, key = path[1:].partition("/")
        with self._lock:
            objects = self._objects.get(bucket)
            if objects is None:
                return error(404, "NoSuchBucket")
            if method == "PUT":
                return _put(objects, key, headers, body)
            if method == "POST" and "delete" in query:
                return _delete(objects, body)
            return _get(objects, key, headers) if key else _list(objects, query)

    def put(self, path: str, content: bytes | None) -> None:
        """Replace or, with None, delete an object, by the path of its request."""
        import obstore

        from framegate.proxy.tap.store import _client

        name = path.removeprefix(f"/{BUCKET}/")
        if content is None:
            obstore.delete(_client(f"s3://{BUCKET}"), name)
        else:
            obstore.put(_client(f"s3://{BUCKET}"), name, content)

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


def _put(objects: dict[str, Object], key: str, headers: Mapping[str, str], body: bytes) -> Answer:
    known, expected = objects.get(key), headers.get("If-Match")
    if expected and known is None:
        return error(404, "NoSuchKey")
    if (headers.get("If-None-Match") and known) or (expected and known and known.tag != expected):
        return error(412, "PreconditionFailed")
    objects[key] = Object(body, time.time(), f'"{hashlib.md5(body).hexdigest()}"')
    return Answer(200, b"", {"ETag": objects[key].tag})


def _get(objects: Mapping[str, Object], key: str, headers: Mapping[str, str]) -> Answer:
    found = objects.get(key)
    if found is None:
        return error(404, "NoSuchKey")
    facts = {"ETag": found.tag, "Last-Modified": email.utils.formatdate(found.modified_s, usegmt=True), "Accept-Ranges": "bytes"}
    if headers.get("If-None-Match") == found.tag:
        return Answer(304, b"", facts)
    size = len(found.content)
    wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("Range") or "")
    if not wanted:
        return Answer(200, found.content, facts)
    first, last = wanted.groups()
    start, end = (int(first), min(int(last or size), size - 1)) if first else (max(size - int(last), 0), size - 1)
    if start >= size:
        return error(416, "InvalidRange")
    return Answer(206, found.content[start : end + 1], {**facts, "Content-Range": f"bytes {start}-{end}/{size}"})


def _list(objects: Mapping[str, Object], query: Mapping[str, str]) -> Answer:
    """ListObjectsV2, in pages."""
    prefix, delimiter, page = query.get("prefix", ""), query.get("delimiter", ""), int(query.get("max-keys", 1000))
    behind = base64.b64decode(query["continuation-token"]).decode() if "continuation-token" in query else query.get("start-after", "")
    rows: dict[str, str] = {}  # by key or common prefix
    last = more = ""
    for key in sorted(key for key in objects if key.startswith(prefix) and key > behind):
        head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        name = prefix + head + cut if cut else key
        if name not in rows and len(rows) == page:
            more = f"<NextContinuationToken>{base64.b64encode(last.encode()).decode()}</NextContinuationToken>"
            break
        rows[name] = _row(name, None if cut else objects[key])
        last = key
    truncated = "true" if more else "false"
    facts = f"<Name>{BUCKET}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(rows)}</KeyCount><IsTruncated>{truncated}</IsTruncated>{more}"
    return Answer(200, f"<ListBucketResult>{facts}{''.join(rows.values())}</ListBucketResult>".encode(), {"Content-Type": "application/xml"})


def _row(name: str, found: Object | None) -> str:
    if found is None:
        return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(found.modified_s)) + f".{int(found.modified_s * 1000) % 1000:03}Z"
    facts = f"<LastModified>{at}</LastModified><ETag>{escape(found.tag)}</ETag><Size>{len(found.content)}</Size>"
    return f"<Contents><Key>{escape(name)}</Key>{facts}<StorageClass>STANDARD</StorageClass></Contents>"


def _delete(objects: dict[str, Object], body: bytes) -> Answer:
    keys = [element.text or "" for element in ET.fromstring(body).iter() if element.tag.endswith("Key")]
    for key in keys:
        objects.pop(key, None)
    deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
    return Answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), {"Content-Type": "application/xml"})


@contextlib.contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch, address: str = "127.0.0.1") -> Iterator[S3]:
    """A server with an empty bucket, for this process and its children; of another ``address`` than the loopback one also for others."""
    from framegate.proxy.tap import store

    made = S3(address)
    try:
        for name, value in made.environment().items():
            monkeypatch.setenv(name, value)
        store._client.cache_clear()  # clients have the environment of their making
        yield made
    finally:
        made.close()
        store._client.cache_clear()
