"""Where the programs are: PATH first, then the newest in the cache; what is missing is said with what to do."""

from pathlib import Path

import pytest

from control.demo.telemetry.tools import find
from tests.fakes.deploying import program


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """PATH and the cache, both empty."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "path", tmp_path / "cache" / "framegate"


def test_nothing_is_said_with_what_to_do(places: tuple[Path, Path]) -> None:
    tools = find()
    assert tools.missing() == ["Prometheus (prometheus) is neither on PATH nor in the cache: make dashboards gets it"]
    assert tools.no_collector() == "no collector (otelcol) is on PATH or in the cache: make dashboards gets it"
    assert "apt-get install chromium" in str(tools.no_pictures())


def test_the_newest_in_the_cache_is_taken_and_path_goes_before_it(places: tuple[Path, Path]) -> None:
    path, cache = places
    for version in ("telemetry-0.158.0-13.1", "telemetry-0.159.0-13.2"):
        (cache / version).mkdir(parents=True)
        for name in ("otelcol", "prometheus"):
            program(cache / version / "bin", name, "exit 0")
        (cache / version / "page").mkdir()
        (cache / version / "page" / "page.js").touch()
    program(path, "prometheus", "exit 0")
    tools = find()
    assert (tools.collector, tools.prometheus) == (str(cache / "telemetry-0.159.0-13.2" / "bin" / "otelcol"), str(path / "prometheus"))
    assert tools.page == cache / "telemetry-0.159.0-13.2" / "page"
    assert (tools.missing(), tools.no_collector()) == ([], None)
    program(path, "chromium", "exit 0")
    assert find().no_pictures() is None


def test_without_the_page_there_are_no_pictures(places: tuple[Path, Path]) -> None:
    program(places[0], "chromium", "exit 0")
    assert "make dashboards gets it" in str(find().no_pictures())
