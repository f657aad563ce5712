"""When the certificates of a configuration end."""

import contextlib
from collections.abc import Mapping

from control.configuration.certificate import not_after
from proxy.config.model import ProxyConfig

__all__ = ["served_ends"]


def served_ends(config: ProxyConfig, files: Mapping[str, str]) -> dict[str, float]:
    """When each certificate that is in use ends, by what it is for: ``listener/NAME`` or ``upstream/NAME``.

    Args:
        files: what was read of the files at the start, by path; a file that was renewed since then is not in use.
    """
    identities = [(f"listener/{item.name}", item.tls.certificate) for item in config.listeners if item.tls is not None]
    identities += [(f"upstream/{item.name}", item.tls.certificate) for item in config.upstreams if item.tls is not None and item.tls.certificate]
    found: dict[str, float] = {}
    for use, path in identities:
        with contextlib.suppress(ValueError):  # OpenSSL has read it, so it is one; of an odd form
            found[use] = not_after(files[path])
    return found
