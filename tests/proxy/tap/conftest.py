from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.kept_tap import KeptTap


@pytest.fixture
def tap(tmp_path: Path) -> Iterator[KeptTap]:
    """A tap directory; this process holds its lock."""
    made = KeptTap(tmp_path)
    yield made
    made.lock.close()
