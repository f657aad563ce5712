"""What a metric of OpenTelemetry is called in Prometheus, as collectors translate it."""

import re
from typing import Final

__all__ = ["label_name", "prometheus_name"]

_UNITS: Final = {"By": "bytes", "s": "seconds"}
_PER: Final = {"s": "second"}
_FOREIGN: Final = re.compile(r"[^a-zA-Z0-9_:]")


def prometheus_name(name: str, unit: str, *, monotonic: bool = False) -> str:
    """The name of a metric: dots become underscores, the unit a suffix, a counter ends in ``_total``.

    ``framegate.io`` in ``By`` is ``framegate_io_bytes_total``; ``framegate.rate.frame.limit`` in ``{frame}/s`` is
    ``framegate_rate_frame_limit_per_second``; what has the unit ``1`` and no ``_total`` ends in ``_ratio``. Annotations as ``{frame}`` add nothing.
    """
    text = _FOREIGN.sub("_", name)
    main, _, per = unit.partition("/")
    suffixes = [_UNITS.get(main, ""), f"per_{_PER[per]}" if per in _PER else "", "ratio" if unit == "1" and not monotonic else ""]
    for suffix in filter(None, suffixes):
        text = text if text.endswith(f"_{suffix}") else f"{text}_{suffix}"
    return f"{text}_total" if monotonic else text


def label_name(key: str) -> str:
    """The name of a label: ``error.type`` is ``error_type``."""
    return _FOREIGN.sub("_", key)
