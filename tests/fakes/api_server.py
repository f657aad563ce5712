"""An API server of Kubernetes as far as the webhook calls it: objects by path over TLS, for the holder of a token."""

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.fakes.certificates import Authority

TOKEN = "a-token"


class FakeApiServer:
    """GET, PUT (refused if ``resourceVersion`` is not the present one), PATCH (of ``caBundle``) and POST (kept in ``posted``)."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, dict[str, Any]] = {}  # by path
        self.posted: list[tuple[str, Any]] = []  # paths and bodies
        authority = Authority(folder, "cluster")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.leaf("api"))
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                known = self.headers["Authorization"] == f"Bearer {TOKEN}"
                status, answer = fake._answer(self.command, self.path, body) if known else (401, {"message": "Unauthorized"})
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_PUT = do_PATCH = do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.account = folder / "account"  # the folder that a pod would have
        self.account.mkdir()
        for name, text in (("token", TOKEN), ("namespace", "system"), ("ca.crt", authority.path.read_text())):
            (self.account / name).write_text(text + "\n")
        # the variables that a pod would have
        self.environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._server.server_address[1])}

    def _answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if method == "POST":
            self.posted.append((path, body))
            return 201, body
        held = self.objects.get(path)
        if held is None:
            return 404, {"message": f"{path} not found"}
        if method == "PUT":
            if body["metadata"]["resourceVersion"] != held["metadata"]["resourceVersion"]:
                return 409, {"message": "the object has been modified"}
            self.objects[path] = {**body, "metadata": {"resourceVersion": held["metadata"]["resourceVersion"] + 1}}
        if method == "PATCH":
            for operation in body:
                _, kind, index, *keys = operation["path"].split("/")
                assert (operation["op"], kind, keys) == ("add", "webhooks", ["clientConfig", "caBundle"])
                held["webhooks"][int(index)]["clientConfig"]["caBundle"] = operation["value"]
        return 200, self.objects[path]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
