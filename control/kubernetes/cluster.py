"""The API server as a pod reaches it: with the token, the authority and the namespace that are mounted into the pod."""

import datetime
import http.client
import json
import os
import ssl
import urllib.parse
from pathlib import Path
from typing import Any, Final

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
COMPONENT: Final = "framegate-webhook"  # the source of events
_TIME_LIMIT_S: Final = 4.0  # of one call, so that a review is answered before the API server gives up


class ClusterError(Exception):
    """The API server refused a call, or cannot be reached. ``status``: of its answer; None: there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Cluster:
    """Calls of the API server. The token is read for each call, because the kubelet renews it. Raises ClusterError: this is no pod, or it has no
    service account.
    """

    def __init__(self, account: Path = ACCOUNT) -> None:
        self._account = account
        try:
            self._host, self._port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
            self.namespace = (account / "namespace").read_text(encoding="utf-8").strip()
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._tls.load_verify_locations(account / "ca.crt")
        except (KeyError, ValueError, OSError) as error:
            raise ClusterError(f"needs a pod with a service account, whose token is mounted in {account}: {error!r}") from error

    def call(self, method: str, path: str, body: Any = None, *, content: str = "application/json") -> Any:
        """The answer to one call. ``content``: the type of ``body``. Raises ClusterError: it was refused, or there was no answer."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=_TIME_LIMIT_S, context=self._tls)
        try:
            token = (self._account / "token").read_text(encoding="utf-8").strip()
            headers = {"Authorization": f"Bearer {token}", "Content-Type": content}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            data = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ClusterError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise ClusterError(f"{method} {path}: {data.get('message') or answer.reason}", answer.status)
        return data

    def config_map(self, namespace: str, name: str, key: str) -> str:
        """One text of a ConfigMap. Raises ClusterError: it cannot be read, or has no such key."""
        path = f"/api/v1/namespaces/{namespace}/configmaps/{urllib.parse.quote(name, safe='')}"  # it comes from an annotation
        data = self.call("GET", path).get("data") or {}
        if key not in data:
            raise ClusterError(f"ConfigMap {name} has no {key}")
        return str(data[key])

    def event(self, namespace: str, about: dict[str, Any], reason: str, message: str) -> None:
        """Record a warning about an object, a reference with kind, name and perhaps uid. Raises ClusterError."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{COMPONENT}-", "namespace": namespace},
            "involvedObject": {**about, "namespace": namespace},
            "reason": reason,
            "message": message[:1024],
            "type": "Warning",
            "source": {"component": COMPONENT},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self.call("POST", f"/api/v1/namespaces/{namespace}/events", event)
