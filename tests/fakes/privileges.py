"""To be nobody in particular: root may write everywhere, so what depends on permissions shows only without it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

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


@contextlib.contextmanager
def everybodys_folder() -> Iterator[Path]:
    """A new folder into which every user may look, as into none of pytest's."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
