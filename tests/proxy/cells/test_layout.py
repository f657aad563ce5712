"""Where cells lie follows from names alone."""

from types import SimpleNamespace

import pytest

from proxy.cells import (
    CELL_SIZE,
    HEADER_SIZE,
    CellLayout,
)


def _config(*listeners: str) -> SimpleNamespace:
    return SimpleNamespace(listeners=[SimpleNamespace(name=name) for name in listeners], upstreams=[SimpleNamespace(name="u")])


@pytest.fixture
def layout() -> CellLayout:
    return CellLayout.of(_config("kafka", "plain"))


def test_equal_names_give_equal_layouts(layout):
    assert CellLayout.of(_config("kafka", "plain")) == layout
    assert CellLayout.of(_config("kafka", "other")).hash != layout.hash


def test_rows_cover_the_cells_without_gap_or_overlap(layout):
    end = 0
    for row in layout.rows:
        assert row.index == end
        end += row.count
    assert end == layout.count
    assert layout.size == HEADER_SIZE + layout.count * CELL_SIZE
