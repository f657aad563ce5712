"""To be nobody in particular: root may write everywhere, so what depends on permissions shows only without it."""

import contextlib
import os
from collections.abc import Iterator

__all__ = ["unprivileged"]

_NOBODY = 65534


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Inside, this process may do what an ordinary user may; nothing changes for who is no root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
