"""To drop root's rights for a while: root may write everywhere, so permissions have an effect only without them."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NOBODY = 65534


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Inside, this process may do what an ordinary user may; nothing changes when it is not root's."""
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
