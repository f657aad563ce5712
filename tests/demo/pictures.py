"""A dashboard as PNG: Chromium photographs a page of Grafana's own components that shows the answers to its queries."""

import html
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.demo.panels import Dashboard, Seen, Window

WIDTH: Final = 1440
_TOP: Final = 64
_CELL: Final = 38
_TIMEOUT_S: Final = 60.0
_ATTEMPTS: Final = 2
_PAGE: Final = """<!doctype html>
<html><head><meta charset="utf-8"><title>{title}</title><link rel="stylesheet" href="page.css"></head>
<body style="margin: 0; width: {width}px"><div id="dashboard"></div>
<script id="picture" type="application/json">{picture}</script>
<script>window.PICTURE = JSON.parse(document.getElementById("picture").textContent);</script>
<script src="page.js"></script></body></html>
"""
_OPTIONS: Final = (
    "--headless=new",
    "--no-sandbox",  # the page is ours, and user namespaces are often not allowed
    "--disable-gpu",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
    "--virtual-time-budget=10000",
)


class PictureError(Exception):
    """There is no picture; the message is one line."""


def draw(browser: str, page: Path, target: Path, dashboard: Dashboard, seen: Mapping[int, Seen], window: Window, subtitle: str) -> None:
    """Draw one dashboard as it was in a window.

    Args:
        browser: Chromium.
        page: the folder of ``page.js`` and ``page.css``.
        target: the PNG file; its folder exists.
        dashboard: whose panels were asked.
        seen: by the panel's id.
        window: the time that is shown.
        subtitle: shown after the title.

    Raises PictureError: the browser failed, or was not done within 60 s, twice.
    """
    picture = {
        "dashboard": dashboard.document,
        "from": window.start * 1000,
        "to": window.end * 1000,
        "step": window.step_s * 1000,
        "subtitle": subtitle,
        "variables": {},
        "results": {str(number): one.answers for number, one in seen.items()},
    }
    with tempfile.TemporaryDirectory(prefix="framegate-picture-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        for file in ("page.js", "page.css"):
            os.symlink(page / file, folder / file)
        # as an escape "<" ends no script within JSON
        text = json.dumps(picture).replace("<", "\\u003c")
        (folder / "page.html").write_text(_PAGE.format(title=html.escape(dashboard.slug), width=WIDTH, picture=text))
        shot = folder / "shot.png"
        places = [f"--user-data-dir={folder / 'profile'}", f"--window-size={WIDTH},{_height(dashboard.document)}", f"--screenshot={shot}"]
        command, said = [browser, *_OPTIONS, *places, (folder / "page.html").as_uri()], ""
        for _ in range(_ATTEMPTS):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
            except subprocess.TimeoutExpired:
                said = f"not done within {_TIMEOUT_S:g} s"
                continue
            if done.returncode == 0 and shot.exists():
                shutil.move(shot, target)
                return
            said = " ".join(done.stderr.split())[-300:]
            time.sleep(0.5)
        raise PictureError(f"{target.name}: the browser failed: {said}")


def _height(document: Mapping[str, Any]) -> int:
    """Of the window in pixels, so that the last panel is whole."""
    bottoms = [0] * 24  # of each column: a closed row's panels take no space
    for place in sorted((panel["gridPos"] for panel in document["panels"]), key=lambda place: (place["y"], place["x"])):
        columns = slice(place["x"], place["x"] + place["w"])
        bottoms[columns] = [max(bottoms[columns]) + place["h"]] * place["w"]
    return _TOP + _CELL * max(bottoms) + 8
