"""When the certificates of a configuration end."""

import os

from control.configuration.certificate import not_after
from proxy.config.model import ProxyConfig

__all__ = ["Certificates", "not_after"]


class Certificates:
    """The certificates that a configuration names, read again when a file changed. Any thread."""

    def __init__(self, config: ProxyConfig) -> None:
        served = {f"listener/{item.name}": item.tls.certificate for item in config.listeners if item.tls is not None}
        shown = {f"upstream/{item.name}": item.tls.certificate for item in config.upstreams if item.tls is not None}
        self._paths = served | {use: path for use, path in shown.items() if path is not None}
        self._known: dict[str, tuple[tuple[int, int], float]] = {}

    def ends(self) -> dict[str, float]:
        """When each ends, by use: ``listener/NAME`` or ``upstream/NAME``. One that cannot be read is left out."""
        found: dict[str, float] = {}
        for use, path in self._paths.items():
            try:
                status = os.stat(path)
                stamp = (status.st_mtime_ns, status.st_ino)
                if self._known.get(use, (None, 0.0))[0] != stamp:
                    with open(path, encoding="ascii", errors="replace") as file:
                        self._known[use] = (stamp, not_after(file.read()))
            except (OSError, ValueError):
                continue
            found[use] = self._known[use][1]
        return found
