"""Pictures: what the browser is given, and what is said when it fails."""

import json
import re
from pathlib import Path

import pytest

from control.demo.telemetry.panels import Dashboard, Seen, Window
from control.demo.telemetry.pictures import Photographer, PictureError
from tests.fakes.deploying import program

PLACE = {"x": 0, "y": 0, "w": 12, "h": 8}
# A closed row, what it holds, and a second one: Grafana leaves no gap between them.
DOCUMENT = {
    "title": "</script>",
    "panels": [
        {"id": 1, "gridPos": PLACE},
        {"id": 2, "gridPos": {**PLACE, "x": 12, "h": 4}},
        {"id": 3, "type": "row", "gridPos": {"x": 0, "y": 8, "w": 24, "h": 1}},
        {"id": 4, "type": "row", "gridPos": {"x": 0, "y": 17, "w": 24, "h": 1}},
    ],
}
BOARD = Dashboard(slug="healthy", document=DOCUMENT, panels=())
WINDOW = Window(start=1.0, end=2.0, variables={})
BROWSER = """
for word; do case "$word" in --screenshot=*) echo png > "${word#--screenshot=}";; file://*) cp "${word#file://}" TOLD/page.html;; esac; done
echo "$@" > TOLD/words"""


def photographer(folder: Path, script: str) -> Photographer:
    program(folder, "browser", script.replace("TOLD", str(folder)))
    return Photographer(str(folder / "browser"), folder, folder / "pictures")


def test_the_page_has_the_dashboard_its_answers_and_the_time(tmp_path: Path) -> None:
    seen = Seen(answers=[{"refId": "A", "data": {"result": []}}])
    target = photographer(tmp_path, BROWSER).draw(BOARD, {1: seen}, WINDOW, "calm", "a quiet hour")
    assert (target, target.read_text()) == (tmp_path / "pictures" / "healthy-calm.png", "png\n")
    page = (tmp_path / "page.html").read_text()
    found = re.search(r'<script id="picture" type="application/json">(.*?)</script>', page)
    assert found is not None
    picture = json.loads(found[1])
    assert (picture["dashboard"], picture["results"], picture["subtitle"]) == (DOCUMENT, {"1": seen.answers}, "a quiet hour")
    assert (picture["from"], picture["to"]) == (1000.0, 2000.0)
    assert f"--window-size=1440,{64 + 38 * 10 + 8}" in (tmp_path / "words").read_text()


@pytest.mark.slow  # the browser is given a second chance, half a second later
def test_a_browser_that_fails_is_said_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"healthy-calm\.png: the browser failed: no display"):
        photographer(tmp_path, "echo no display >&2; exit 1").draw(BOARD, {}, WINDOW, "calm", "")
    assert not (tmp_path / "pictures" / "healthy-calm.png").exists()


@pytest.mark.slow
def test_a_browser_that_says_nothing_and_writes_nothing_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="the browser failed"):
        photographer(tmp_path, "exit 0").draw(BOARD, {}, WINDOW, "calm", "")
