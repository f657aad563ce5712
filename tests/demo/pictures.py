"""A dashboard as PNG: its answers in a page of Grafana's own components, and the page photographed by Chromium."""

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

__all__ = ["Photographer", "PictureError"]

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


class PictureError(Exception):
    """There is no picture; the message is one line."""


class Photographer:
    """Draws dashboards into a folder.

    Args:
        browser: Chromium.
        page: the folder of ``page.js`` and ``page.css``.
        folder: for the pictures; made when it is not there.
    """

    def __init__(self, browser: str, page: Path, folder: Path) -> None:
        self._browser = browser
        self._page = page
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def draw(self, dashboard: Dashboard, seen: Mapping[int, Seen], window: Window, name: str, subtitle: str) -> Path:
        """Draw one dashboard as it was in a window.

        Args:
            dashboard: whose panels were asked.
            seen: by the panel's id.
            window: the time that is shown.
            name: of the picture, behind the dashboard's.
            subtitle: behind the title.

        Raises:
            PictureError: the browser failed, or was not done in time.
        """
        target = self._folder / f"{dashboard.slug}-{name}.png"
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
                os.symlink(self._page / file, folder / file)
            # "<" ends no script within JSON when it is written as an escape
            text = json.dumps(picture).replace("<", "\\u003c")
            (folder / "page.html").write_text(_PAGE.format(title=html.escape(dashboard.slug), width=WIDTH, picture=text))
            self._photograph(folder, target, _height(dashboard.document))
        return target

    def _photograph(self, folder: Path, target: Path, height: int) -> None:
        shot = folder / "shot.png"
        options = [
            "--headless=new",
            "--no-sandbox",  # our own page, and often no user namespaces
            "--disable-gpu",
            "--hide-scrollbars",
            "--allow-file-access-from-files",
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={WIDTH},{height}",
            "--virtual-time-budget=10000",
            f"--screenshot={shot}",
        ]
        said = ""
        for _ in range(_ATTEMPTS):
            try:
                done = subprocess.run(
                    [self._browser, *options, (folder / "page.html").as_uri()], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
                )
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
    """Of the window, so that the last panel is seen whole."""
    bottoms = [0] * 24  # of each column: what a closed row holds leaves no gap
    for place in sorted((panel["gridPos"] for panel in document["panels"]), key=lambda place: (place["y"], place["x"])):
        columns = slice(place["x"], place["x"] + place["w"])
        bottoms[columns] = [max(bottoms[columns]) + place["h"]] * place["w"]
    return _TOP + _CELL * max(bottoms) + 8
