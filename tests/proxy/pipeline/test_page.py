"""The page of plots."""

import html.parser
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from framegate.proxy.pipeline.page import page
from framegate.proxy.pipeline.sql import open_tables
from tests.proxy.pipeline.test_sql import MINUTE, START, write_hour


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return write_hour(tmp_path)


class Page(html.parser.HTMLParser):
    """The elements and texts of a page; every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert tag not in ("script", "link", "img", "iframe")
        assert not any(name in ("src", "href", "onload") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_page_has_plots_and_tables_and_nothing_from_elsewhere(output: Path) -> None:
    text = page(open_tables(output), "var/<tables>", START, START + 60 * MINUTE)
    assert ElementTree.fromstring(text.replace("<!DOCTYPE html>", "").replace('<meta charset="utf-8">', "")).tag == "html"
    found = Page(text)
    said = " ".join(found.words)
    for words in (
        "var/<tables>",
        "<b>&shop",
        "CN=b",
        "orders Produce",
        "queue_full",
        "complete",
        "p99",
        "up to 512 KiB",
        "CN=a 2 1 1.5 20 40",
        "2026-11-22 07:00 to 2026-11-22 08:00",
    ):
        assert words in said, words
    assert found.tags.count("svg") == 4
    assert "<b>" not in text


def test_a_page_shows_only_its_time(output: Path) -> None:
    text = page(open_tables(output), "t", START + 30 * MINUTE, START + 60 * MINUTE)
    assert "orders" not in text
    assert "30</td>" in text


def test_lines_end_at_the_right_edge_and_the_top(output: Path) -> None:
    text = page(open_tables(output), "t", START, START + 60 * MINUTE)
    points = [tuple(map(float, point.split(","))) for line in text.split('points="')[1:] for point in line.split('"')[0].split()]
    assert all(70 <= x <= 890 and 10 <= y <= 178 for x, y in points)
