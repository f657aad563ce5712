"""The commands that need no running framegate."""

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from framegate.control.cli.commands import main
from framegate.control.errors import StartError
from framegate.control.telemetry.environment import judge
from framegate.proxy.config.model import TelemetryConfig

GOOD = """\
node: edge-1
admin: {address: "unix:admin.sock"}
memory_pool: {size: 100MiB}
processors: 1
listeners: [{name: plain, address: "127.0.0.1:0", upstream: echo, max_receive_size: 1MiB}]
upstreams: [{name: echo, endpoints: ["127.0.0.1:9092"]}]
"""


def run(*words: str) -> Any:
    return CliRunner().invoke(main, words)


def test_a_good_configuration_is_good(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    result = run("check", "--config", str(tmp_path / "good.yaml"))
    assert (result.exit_code, result.stdout) == (0, "")
    odd = tmp_path / "\x1b[31m\n"
    odd.write_text(GOOD)
    assert run("check", "--config", str(odd)).stderr == f"framegate: {tmp_path}/\\x1b[31m\\n is valid\n"


def test_every_fault_is_a_line_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(GOOD.replace("upstream: echo", "upstream: nobody").replace("1MiB", "1 mile") + "colour: red\n")
    result = run("check", "--config", str(tmp_path / "bad.yaml"))
    rows = json.loads(run("check", "--config", str(tmp_path / "bad.yaml"), "--output", "json").stdout)
    assert result.exit_code == 2
    assert sorted(row["key"] for row in rows) == ["colour", "listeners[0].max_receive_size", "listeners[0].upstream"]
    assert [row["line"] for row in rows] == [5, 5, 7]
    assert {row["level"] for row in rows} == {"fault"}
    for row in rows:
        assert row["key"] in result.stdout
        assert row["reason"] in result.stdout
    assert "has 3 faults" in result.stderr


def test_variables_that_serve_would_refuse_are_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    result = run("check", "--config", str(path), "--output", "json")
    (row,) = json.loads(result.stdout)
    with pytest.raises(StartError) as caught:
        judge(TelemetryConfig())
    assert (result.exit_code, row["level"], row["key"], row["reason"]) == (2, "fault", "telemetry", str(caught.value))
    assert "has 1 fault" in result.stderr


def test_warnings_are_shown_and_the_configuration_is_good(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(GOOD + '  - {name: other, endpoints: ["127.0.0.1:9092"]}\n')
    path.write_text(path.read_text().replace("upstreams: [{name: echo", "upstreams:\n  - {name: echo").replace('9092"]}]', '9092"]}'))
    result = run("check", "--config", str(path))
    assert (result.exit_code, result.stderr) == (0, f"framegate: {path} is valid, with 1 warning\n")
    assert result.stdout.splitlines()[1].split()[:4] == ["warning", "8", "upstreams[1].name", "other"]
    (row,) = json.loads(run("check", "--config", str(path), "--output", "json").stdout)
    assert (row["level"], row["line"], row["key"]) == ("warning", 8, "upstreams[1].name")
    path.write_text(path.read_text() + "colour: red\n")
    result = run("check", "--config", str(path))
    assert (result.exit_code, result.stderr) == (2, f"framegate: {path} has 1 fault and 1 warning\n")


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: object) -> None:
    module = types.ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


def test_serve_ends_with_the_code_of_the_proxy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Path, str | None]] = []
    stand_in(monkeypatch, "framegate.control.serve", serve=lambda path, log_format: asked.append((path, log_format)) or 7)
    path = tmp_path / "good.yaml"
    path.write_text(GOOD)
    for options in ((), ("--log-format", "text"), ("--log-format", "json")):
        assert run("serve", "--config", str(path), *options).exit_code == 7
    assert asked == [(path, None), (path, "text"), (path, "json")]
    assert run("serve", "--config", str(path), "--log-format", "xml").exit_code == 2


@pytest.mark.parametrize(("words", "loaded"), [(("serve", "--config"), []), (("check", "--config"), ["click", "ruamel.yaml", "ssl", "_hashlib"])])
def test_what_runs_for_long_does_without_what_only_others_need(tmp_path: Path, words: tuple[str, ...], loaded: list[str]) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text("nodes: a")
    others = ("click", "ruamel.yaml", "ssl", "_hashlib", "framegate.proxy.relay.pair")
    code = (
        "import sys\nfrom framegate.control.cli import main\n"
        f"try:\n    main()\nexcept SystemExit as end:\n    print(end.code, [name for name in {others} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *words, str(path)], capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.splitlines()[-1] == f"2 {loaded}"
    assert "nodes" in done.stdout + done.stderr


def test_serve_in_any_other_form_is_read_by_click(tmp_path: Path) -> None:
    for words in (("serve",), ("serve", "--config", str(tmp_path / "none")), ("serve", "--configuration", "x"), ("serve", "--config", "x", "y")):
        done = subprocess.run([sys.executable, "-m", "framegate.control.cli", *words], capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, "Usage: framegate serve" in done.stderr) == (2, True)
