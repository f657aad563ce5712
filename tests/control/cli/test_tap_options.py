"""What the commands of ``framegate tap`` take for a log."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from framegate.control.cli.commands import main

COMMANDS = (["ls"], ["cat"], ["verify"], ["replay", "--to", "localhost:1"], ["export", "--pcapng", "/dev/null"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_what_is_no_log_is_wrong_usage(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for log in (tmp_path / "none", tmp_path / "other", "ftp://host/taps"):
        assert CliRunner().invoke(main, ["tap", *command, str(log)]).exit_code == 2, log


def test_a_url_where_only_a_directory_is_read_is_named_as_such() -> None:
    for command in (["follow"], ["consumers", "list"]):
        result = CliRunner().invoke(main, ["tap", *command, "s3://bucket/taps"])
        assert (result.exit_code, "s3://bucket/taps is a URL" in result.stderr) == (2, True), command


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_store_without_nodes_is_1(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(main, ["tap", *command, f"file://{tmp_path}"])
    assert (result.exit_code, "has no nodes" in result.stderr) == (1, True)
