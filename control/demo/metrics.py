"""Prometheus text, as the proxy exports it, read back into numbers."""

import re
import urllib.request
from collections.abc import Iterator
from typing import Final

__all__ = ["Metrics"]

_LINE: Final = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


class Metrics:
    """One scrape.

    Args:
        text: in Prometheus' text format.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = list(self._parse(text))

    @classmethod
    def scrape(cls, address: str) -> "Metrics":
        """What ``http://address/metrics`` says now."""
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
            return cls(reply.read().decode())

    def sum(self, name: str, **labels: str) -> int:
        """The sum over all samples of a metric with these labels; a metric that is not there is 0."""
        return int(sum(value for value in self._values(name, labels)))

    def by(self, name: str, label: str) -> dict[str, int]:
        """The sums by one label's values, zeroes left out."""
        sums: dict[str, int] = {}
        for sample, labels, value in self._samples:
            if sample == name and value:
                key = labels.get(label, "")
                sums[key] = sums.get(key, 0) + int(value)
        return sums

    def _values(self, name: str, wanted: dict[str, str]) -> Iterator[float]:
        for sample, labels, value in self._samples:
            if sample == name and all(labels.get(key) == text for key, text in wanted.items()):
                yield value

    def _parse(self, text: str) -> Iterator[tuple[str, dict[str, str], float]]:
        for line in text.splitlines():
            match = _LINE.match(line)
            if match is not None and not line.startswith("#"):
                yield match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])
