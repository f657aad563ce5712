"""What is wrong with a configuration: one ``Fault`` for each thing, never only the first."""

import dataclasses
from typing import NamedTuple

from proxy.config.model import ProxyConfig

__all__ = ["ConfigurationError", "Fault", "Findings"]


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        line: in the file, from 1; 0 when the configuration did not come from a file.
        key: the path of the value, as ``listeners[0].tls.key``; empty for the whole document.
        value: what stands there, shortened; empty when the key is missing, or when it is no key, of whose value nobody knows what it is.
        reason: why that is wrong and what would be right.
    """

    line: int
    key: str
    value: str
    reason: str

    def __str__(self) -> str:
        shown = f" = {self.value}" if self.value else ""
        return f"line {self.line}: {self.key or 'the document'}{shown}: {self.reason}"


class Findings(NamedTuple):
    """What was found in a configuration, by line. Attributes: ``config`` (None when there are faults), ``faults`` (nothing starts with one),
    ``warnings`` (it starts, but perhaps not as it was meant), ``model`` (as ``config``, and there as well when only this machine is at fault).
    """

    config: ProxyConfig | None
    faults: list[Fault]
    warnings: list[Fault]
    model: ProxyConfig | None = None


class ConfigurationError(Exception):
    """A configuration with one or more faults, ordered by line."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults
