"""``framegate config``."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from framegate.control.cli.commands import main
from framegate.control.cli.config import MAX_TEXT
from framegate.control.configuration.writing import as_yaml
from tests.fakes.cli import Cli

SIZE = "listeners[kafka].max_receive_size"


def changed(cli: Cli, old: str = "  - name: kafka\n", new: str = "  - name: kafka\n    max_receive_size: 4KiB\n") -> str:
    return as_yaml(cli.plane.config, str(cli.plane.file.parent)).replace(old, new)


def test_what_is_shown_is_the_file_or_what_is_in_force(cli: Cli) -> None:
    cli.plane.limit(4096)
    result = cli("config", "show")
    assert (yaml.safe_load(result.stdout)["node"], "max_receive_size" in result.stdout) == ("edge-1", False)
    assert result.stderr == "framegate: 1 value in force differ from it: framegate config show --effective, framegate status\n"
    assert yaml.safe_load(cli("config", "show", "--effective").stdout)["listeners"][0]["max_receive_size"] == "4KiB"
    assert [item["path"] for item in cli.json("config", "show")["differences"]] == [SIZE]
    (line,) = [line for line in cli("status").stdout.splitlines() if line.startswith("configuration")]
    assert line.split(maxsplit=1)[1] == f"revision 1, of {cli.plane.file}; 1 value set by hand: {SIZE}"


def test_a_file_is_compared_and_applied(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(changed(cli))
    rows = [["KEY", "IN", "FORCE", "NEW", "EFFECT"], [SIZE, "100MiB", "4KiB", "now"]]
    for words in (("diff", str(path)), ("apply", str(path), "--dry-run")):
        result = cli("config", *words)
        assert (result.exit_code, [line.split() for line in result.stdout.splitlines()]) == (0, rows), result.output
    assert cli.plane.limits["kafka"] == 100 * 1024**2
    piped = CliRunner(env={"FRAMEGATE_ADDRESS": cli.address}).invoke(main, ["config", "diff", "-", "-o", "json"], input=path.read_bytes())
    assert piped.exit_code == 0, piped.output
    result = cli("config", "apply", str(path), "--reason", "why")
    assert (result.exit_code, [line.split() for line in result.stdout.splitlines()], cli.plane.limits["kafka"]) == (0, rows, 4096)
    etag = cli.json("config", "show")["etag"]
    assert result.stderr.endswith(f"framegate: applied, 1 value changed; etag {etag}\n")
    assert cli("config", "diff", str(path)).stderr.endswith("framegate: there is no difference\n")
    assert [row["request"].get("reason") for row in cli.plane.audits] == [None, None, None, None, "why", None]
    assert cli("config", "apply", str(path), "--etag", "other").exit_code == 4


def test_without_a_file_it_is_framegates_own(cli: Cli) -> None:
    assert cli("config", "diff").stderr == "framegate: framegate's file has 1 fault\n"
    cli.plane.file.write_text(changed(cli))
    assert [item["path"] for item in cli.json("config", "diff")["differences"]] == [SIZE]
    assert cli("config", "apply").exit_code == 0
    assert (cli.plane.limits["kafka"], cli.json("config", "show")["difference_count"]) == (4096, 0)


def test_every_fault_of_a_file_is_printed_as_by_check(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text("node: m/\nlisteners: [{name: a, address: '1:x'}]\n")
    checked = CliRunner().invoke(main, ["check", "--config", str(path)])
    for verb in ("diff", "apply"):
        result = cli("config", verb, str(path))
        assert (result.exit_code, result.stderr) == (2, checked.stderr)
        assert [line for line in result.stdout.splitlines() if " fault " in f" {line}"] == [
            line for line in checked.stdout.splitlines() if " fault " in f" {line}"
        ]
    path.write_text(changed(cli, "edge-1", "edge-2"))
    result = cli("config", "apply", str(path))
    assert (result.exit_code, "a restart is needed to change node (NEEDS_RESTART)" in result.stderr) == (1, True)


@pytest.mark.parametrize(("data", "said"), [(b"x" * (MAX_TEXT + 1), "larger than 240 KiB"), (b"\xff", "not UTF-8")])
def test_a_file_that_cannot_be_sent_is_wrong_usage(cli: Cli, tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "new.yaml"
    path.write_bytes(data)
    result = cli("config", "diff", str(path))
    assert (result.exit_code, said in result.stderr) == (2, True)


def test_what_was_set_by_hand_is_saved_and_is_then_the_files(cli: Cli, tmp_path: Path) -> None:
    file = cli.plane.file
    file.write_text("# old\n")
    file.chmod(0o640)
    cli.plane.limit(4096)
    printed = cli("config", "save", "-").stdout
    assert printed.startswith("# Written by `framegate config save`")
    elsewhere = tmp_path / "saved.yaml"
    result = cli("config", "save", str(elsewhere))
    assert (result.exit_code, elsewhere.read_text(), list(tmp_path.iterdir())) == (0, printed, [elsewhere])
    assert cli.json("config", "show")["difference_count"] == 1
    result = cli("config", "save")
    assert (result.exit_code, result.stderr) == (0, f"framegate: {file} is written, with 1 value that the file did not have\n"), result.output
    assert (file.read_text(), file.with_name("framegate.yaml.old").read_text(), file.stat().st_mode & 0o777) == (printed, "# old\n", 0o640)
    assert cli.json("config", "show")["difference_count"] == 0
    result = cli("config", "save", "/proc/framegate.yaml")
    assert (result.exit_code, "cannot be written" in result.stderr) == (1, True)
