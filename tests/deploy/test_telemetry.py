"""What gets a collector, Prometheus and the page: what cannot be had is said, what is there is left alone, what fails has its last words."""

from pathlib import Path

import pytest

from tests.fakes import deploying

programs = deploying.module("programs")
telemetry = deploying.module("telemetry")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH, beside an empty cache; the shell is there."""
    folder = tmp_path / "path"
    folder.mkdir()
    for name in ("sh", "touch", "mkdir", "cp", "echo"):
        (folder / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(programs, "go", lambda: None)
    return folder


def test_what_cannot_be_had_is_said_in_a_line_each_and_the_rest_goes_on(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert telemetry.main([]) == 0
    assert capfd.readouterr().err.splitlines() == [
        "framegate: collector: not here: needs Go 1.26 or newer, or otelcol on PATH",
        "framegate: prometheus: not here: needs Debian's apt-get, or prometheus and promtool on PATH",
        "framegate: page: not here: needs Node.js with npm",
    ]


def test_what_is_on_path_is_not_made(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("otelcol", "prometheus", "promtool"):
        deploying.program(path, name, "exit 0")
    assert telemetry.main(["collector", "prometheus"]) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_prometheus_is_unpacked_and_not_installed_and_only_once(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    deploying.program(path, "apt-get", 'echo "$@" >> ../told; touch prometheus_2.42.0_amd64.deb')
    deploying.program(path, "dpkg", 'mkdir -p "$3/usr/bin"; touch "$3/usr/bin/prometheus" "$3/usr/bin/promtool"')
    assert [telemetry.main(["prometheus"]), telemetry.main(["prometheus"])] == [0, 0]
    shop = telemetry.workshop()
    assert sorted(file.name for file in shop.bin.iterdir()) == ["prometheus", "promtool"]
    assert (shop.folder / "told").read_text() == "download -q prometheus\n"
    assert not (shop.folder / "debian").exists()


@pytest.mark.slow
def test_a_step_that_fails_has_its_last_words_and_the_rest_goes_on(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    deploying.program(path, "apt-get", "echo E: no such package >&2; exit 100")
    deploying.program(path, "dpkg", "exit 0")
    assert telemetry.main(["prometheus", "page"]) == 1
    said = capfd.readouterr().err
    assert "prometheus: downloading Prometheus failed: E: no such package" in said
    assert "page: not here" in said


@pytest.mark.slow
def test_the_page_is_made_again_when_its_source_has_changed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "package.json").write_text("{}")
    (source / "main.jsx").write_text("one")
    monkeypatch.setattr(telemetry, "PICTURES", source)
    esbuild = 'for word; do case "$word" in --outfile=*) cp main.jsx "${word#--outfile=}";; esac; done'
    deploying.program(path, "npm", f"mkdir -p node_modules/.bin; echo '{esbuild}' > node_modules/.bin/esbuild")
    (path / "chmod").symlink_to("/bin/chmod")
    with (path / "npm").open("a") as script:
        script.write('echo "#!/bin/sh" > x; while read -r line; do echo "$line" >> x; done < node_modules/.bin/esbuild\n')
        script.write("cp x node_modules/.bin/esbuild; chmod 755 node_modules/.bin/esbuild\n")
    page = telemetry.workshop().folder / "page" / "page.js"
    assert telemetry.main(["page"]) == 0
    assert page.read_text() == "one"
    page.write_text("left alone")
    assert telemetry.main(["page"]) == 0
    assert page.read_text() == "left alone"
    (source / "main.jsx").write_text("two")
    assert telemetry.main(["page"]) == 0
    assert page.read_text() == "two"


def test_a_part_that_there_is_not_is_refused_with_the_list(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        telemetry.main(["grafana"])
    assert stopped.value.code == 2
    assert "[collector] [prometheus] [page]" in capfd.readouterr().err


def test_a_go_that_is_too_old_is_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(path))
    for version, good in (("go1.25.9", False), ("go1.26", True), ("go1.26.8", True), ("go2.0", True)):
        deploying.program(path, "go", f"echo go version {version} linux/amd64")
        assert (programs.go() is not None) == good, version


def test_a_workshop_has_one_process_at_a_time(path: Path, tmp_path: Path) -> None:
    shop = programs.Workshop(tmp_path / "shop")
    other = programs.Workshop(tmp_path / "shop")
    waited: list[str] = []

    def wait(ready: object, text: str) -> None:
        waited.append(text)
        raise InterruptedError

    with shop.alone(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs.environment, "wait_with_clock", wait)
        with pytest.raises(InterruptedError), other.alone():
            pass
    assert waited == [f"waiting for another process that works in {tmp_path / 'shop'}"]
    with other.alone():
        assert shop.unmade(["go"]) == ["go"]
