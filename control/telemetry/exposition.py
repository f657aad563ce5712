"""The answer to a scrape, in the text format of Prometheus 0.0.4 or, if the scraper asks for it, in OpenMetrics 1.0.0.

A scrape has thousands of samples, nearly all of them buckets. Only their numbers are made for each scrape: the text before a number is kept from one
scrape to the next. ``control.web`` serves, on the event loop of one thread.

Source: prometheus.io/docs/instrumenting/exposition_formats.
"""

import asyncio
import contextlib
import email
import gzip
import itertools
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final

from framegate.control.status import Attributes
from framegate.control.telemetry.catalogue import label_name, prometheus_name
from framegate.control.web import Server, response
from framegate.proxy.cells import HistogramValue, Metric

Measured = Iterable[tuple[Metric, Mapping[Attributes, float | HistogramValue]]]
"""Metrics with their values by attributes; a histogram with one bucket has a count and a sum only."""

_REFUSED: Final = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*$", re.IGNORECASE)  # the end of an encoding that the client does not accept


_OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_LEVEL: Final = 1  # of gzip: buckets are so alike that more makes the answer hardly smaller, and takes several times as long


class Page:
    """Writes answers. ``resource``: attributes of what is scraped, the labels of ``target_info``."""

    def __init__(self, resource: Mapping[str, object]) -> None:
        self._info = _labels((key, str(value)) for key, value in resource.items())
        self._texts: dict[tuple[str, Attributes], list[str]] = {}
        """What is before the number of each sample, for the series of the last answer."""

    def write(self, measured: Measured, *, open_metrics: bool) -> bytes:
        family = "target info" if open_metrics else "target_info gauge"
        lines = [f"# HELP {family.split()[0]} What is scraped here.\n# TYPE {family}\ntarget_info{{{self._info}}} 1.0"]
        former, self._texts = self._texts, {}
        for metric, points in measured:
            name, sample = (prometheus_name(metric.name, metric.unit, monotonic=monotonic) for monotonic in (False, metric.kind == "counter"))
            family = name if open_metrics else sample
            lines.append(f"# HELP {family} {metric.description}\n# TYPE {family} {metric.kind}")
            for attributes, value in points.items():
                key = metric.name, attributes
                texts = former.get(key)
                if isinstance(value, HistogramValue):
                    if texts is None or len(texts) != len(value.buckets) + 2:
                        texts = _texts_of_histogram(name, _labels(attributes), metric.bounds[: len(value.buckets) - 1])
                    lines += [f"{text} {count}" for text, count in zip(texts, itertools.accumulate(value.buckets), strict=False)]
                    lines += [f"{texts[-2]} {value.count}", f"{texts[-1]} {float(value.sum)!r}"]
                else:
                    texts = texts or [f"{sample}{{{_labels(attributes)}}}" if attributes else sample]
                    lines.append(f"{texts[0]} {float(value)!r}")
                self._texts[key] = texts
        return "\n".join([*lines, "# EOF\n" if open_metrics else ""]).encode()


def _labels(attributes: Iterable[tuple[str, str]]) -> str:
    return ",".join(f'{label_name(key)}="{value.translate(_ESCAPES)}"' for key, value in attributes)


def _texts_of_histogram(name: str, labels: str, bounds: Iterable[float]) -> list[str]:
    first, whole = (f"{labels}," if labels else ""), (f"{{{labels}}}" if labels else "")
    buckets = [f'{name}_bucket{{{first}le="{bound}"}}' for bound in (*(repr(float(bound)) for bound in bounds), "+Inf")]
    return [*buckets, f"{name}_count{whole}", f"{name}_sum{whole}"]


class Scrapes:
    """Answers scrapes on a listening socket, in the thread that calls ``serve``. ``sock``: closed when ``serve`` ends. ``collect``: returns the
    values at the moment of a scrape; called in the thread that serves.
    """

    def __init__(self, sock: socket.socket, collect: Callable[[], Measured], resource: Mapping[str, object]) -> None:
        self._collect = collect
        self._page = Page(resource)
        self._socket = sock
        self._server = Server(sock, self._answer)
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()

    @property
    def refused(self) -> int:
        """See ``Server``. Any thread."""
        return self._server.refused

    def serve(self) -> None:
        """Serve in this thread until ``stop``."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def stop(self) -> None:
        """End ``serve``, now or as soon as it begins. Any thread."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._end.set)

    async def _serve(self) -> None:
        await self._server.start()
        await self._end.wait()
        self._loop.remove_reader(self._socket)
        for _ in range(3):  # asyncio does not close a connection that was accepted just now, unless it has its transport, protocol and task
            await asyncio.sleep(0)
        self._server.stop()

    def _answer(self, head: bytes) -> bytes:
        """The response to a request, on any path; HEAD is GET without the body."""
        line, _, lines = head.partition(b"\r\n")
        words = line.decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return response(HTTPStatus.BAD_REQUEST)
        if not words[2].startswith("HTTP/1."):
            return response(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
        if words[0] not in ("GET", "HEAD"):
            return response(HTTPStatus.METHOD_NOT_ALLOWED, headers=(("Allow", "GET, HEAD"),))
        fields = email.message_from_bytes(lines)
        open_metrics = "application/openmetrics-text" in fields.get("Accept", "")
        headers = [("Content-Type", _OPEN_METRICS if open_metrics else _PLAIN)]
        body = self._page.write(self._collect(), open_metrics=open_metrics)
        encodings = fields.get("Accept-Encoding", "").split(",")
        if any("gzip" in encoding.lower() and not _REFUSED.search(encoding) for encoding in encodings):
            headers.append(("Content-Encoding", "gzip"))
            body = gzip.compress(body, _LEVEL)
        return response(HTTPStatus.OK, body, tuple(headers), head_only=words[0] == "HEAD")
