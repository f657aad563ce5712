"""``Cause`` under the name of this room; ``proxy.cause`` is where it stands, because the metrics below this room list it, too."""

from proxy.cause import Cause

__all__ = ["Cause"]
