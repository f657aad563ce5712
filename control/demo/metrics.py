"""A scrape of the proxy's metrics, read back into numbers."""

import urllib.request
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Metrics"]


class Metrics:
    """One scrape.

    Args:
        text: in Prometheus' text format.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    @classmethod
    def scrape(cls, address: str) -> "Metrics":
        """What ``http://address/metrics`` says now."""
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
            return cls(reply.read().decode())

    def sum(self, name: str, **labels: str) -> int:
        """The sum over all samples of a metric with these labels; 0 for a metric that is not there."""
        return int(sum(one.value for one in self._samples if one.name == name and labels.items() <= one.labels.items()))

    def by(self, name: str, label: str) -> dict[str, int]:
        """The sums by one label's values, zeroes left out."""
        sums: Counter[str] = Counter()
        for sample in self._samples:
            if sample.name == name and sample.value:
                sums[sample.labels.get(label, "")] += int(sample.value)
        return dict(sums)
