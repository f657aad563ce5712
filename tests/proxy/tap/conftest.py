from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.kept_tap import KeptTap
from tests.fakes.shipped import ShippedTap


@pytest.fixture
def tap(tmp_path: Path) -> Iterator[KeptTap]:
    """A tap directory; this process holds its lock."""
    made = KeptTap(tmp_path)
    yield made
    made.lock.close()


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[ShippedTap]:
    """A node with a shipper, and its store."""
    made = ShippedTap(tmp_path / "tap")
    yield made
    made.leave()
