"""A plane whose cells the tests fill, and a log."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from framegate.control.logs import RowLog
from tests.fakes.plane import FakePlane, fake_config


@pytest.fixture
def plane() -> Iterator[FakePlane]:
    with contextlib.closing(FakePlane(fake_config("unix:unused", None))) as plane:
        yield plane


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RowLog]:
    """Its rows are in the file ``rows``."""
    with (tmp_path / "rows").open("wb", buffering=0) as file, contextlib.closing(RowLog(file.fileno())) as log:
        yield log
