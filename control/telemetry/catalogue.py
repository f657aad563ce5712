"""All exported metrics, and their names in Prometheus."""

import re
from typing import Final

from framegate.proxy.cells.metrics import METRICS
from framegate.proxy.cells.standard_metrics import CALLS, PROCESS_METRICS

_UNITS: Final = {"By": "bytes", "s": "seconds", "By/s": "bytes_per_second", "/s": "per_second"}
_ANNOTATION: Final = re.compile(r"\{[^}]*\}")
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_:]")

EXPORTED: Final = (*METRICS, CALLS, *PROCESS_METRICS)  # every metric of framegate itself, in the order of the table


def prometheus_name(name: str, unit: str, *, monotonic: bool = False) -> str:
    """The name of a metric in Prometheus, as collectors translate it: dots become underscores, the unit a suffix, a counter ends in ``_total``.
    ``framegate.io`` in ``By`` is ``framegate_io_bytes_total``. Annotations such as ``{frame}`` add nothing. No metric here has the unit ``1``, which
    some translators make ``_ratio`` and others leave out.
    """
    text = _FOREIGN.sub("_", name)
    suffix = _UNITS.get(_ANNOTATION.sub("", unit), "")
    if suffix and not text.endswith(f"_{suffix}"):
        text = f"{text}_{suffix}"
    return f"{text}_total" if monotonic else text


def label_name(key: str) -> str:
    """The name of a label: ``error.type`` is ``error_type``."""
    return _FOREIGN.sub("_", key)
