"""Questions to Prometheus over its HTTP API."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["Prometheus", "QueryError"]

_TIMEOUT_S: Final = 10.0

Answer = dict[str, Any]


class QueryError(Exception):
    """Prometheus refused a query; the message is its own."""


class Prometheus:
    """A server that runs.

    Args:
        address: ``host:port``.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def ready(self) -> bool:
        """Whether it answers queries yet."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=_TIMEOUT_S) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def instant(self, query: str, at: float) -> Answer:
        """What a query is at a time, in seconds since 1970: ``resultType`` and ``result``.

        Raises:
            QueryError: the query is none, or there was no answer.
        """
        return self._ask("query", {"query": query, "time": f"{at:.3f}"})

    def range(self, query: str, start: float, end: float, step_s: float) -> Answer:
        """The same from ``start`` to ``end``, every ``step_s`` seconds."""
        return self._ask("query_range", {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s:g}"})

    def _ask(self, what: str, fields: Mapping[str, str]) -> Answer:
        request = urllib.request.Request(f"http://{self.address}/api/v1/{what}", data=urllib.parse.urlencode(fields).encode())
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise QueryError(_reason(error.read(), str(error))) from error
        except OSError as error:
            raise QueryError(f"{self.address}: {error}") from error
        data: Answer = answer["data"]
        return data


def _reason(body: bytes, otherwise: str) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError):
        return otherwise
