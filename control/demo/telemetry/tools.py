"""Where the programs are that show telemetry: on PATH, or in the cache that ``make dashboards`` fills."""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Final

__all__ = ["Tools", "find"]

_COLLECTORS: Final = ("otelcol", "otelcol-contrib")
_BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "chrome")
_ADVICE: Final = "make dashboards gets it"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What there is; None: it is not here.

    Attributes:
        collector: OpenTelemetry's, with the components of ``deploy/collector``.
        prometheus: the server.
        browser: Chromium.
        page: the folder with ``page.js`` and ``page.css``, which draw a dashboard.
    """

    collector: str | None
    prometheus: str | None
    browser: str | None
    page: Path | None

    def missing(self) -> list[str]:
        """What the run cannot do without, for people; empty when nothing."""
        return [f"Prometheus (prometheus) is neither on PATH nor in the cache: {_ADVICE}"] if self.prometheus is None else []

    def no_collector(self) -> str | None:
        """Why nothing will go over OTLP; None when it can."""
        return f"no collector (otelcol) is on PATH or in the cache: {_ADVICE}" if self.collector is None else None

    def no_pictures(self) -> str | None:
        """Why there will be no pictures; None when there can be."""
        if self.browser is None:
            return "Chromium is not on PATH (on Debian: apt-get install chromium)"
        return f"the page that draws them is not in the cache: {_ADVICE}" if self.page is None else None


def find() -> Tools:
    """Look for all of them; the newest in the cache counts."""
    pages = [folder / "page" for folder in _kept() if (folder / "page" / "page.js").exists()]
    return Tools(
        collector=_program(_COLLECTORS),
        prometheus=_program(("prometheus",)),
        browser=next(filter(None, map(shutil.which, _BROWSERS)), None),
        page=pages[-1] if pages else None,
    )


def _kept() -> list[Path]:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return sorted((base / "framegate").glob("telemetry-*"))


def _program(names: tuple[str, ...]) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *(str(folder / "bin") for folder in reversed(_kept()))])
    return next(filter(None, (shutil.which(name, path=path) for name in names)), None)
