"""The prompt."""

from click.testing import CliRunner

from framegate.control.cli.commands import main
from framegate.proxy.pipeline.delta import DeltaTables
from tests.fakes.outputs import Output


def test_a_shell_asks_one_query_after_the_other(output: Output) -> None:
    DeltaTables(output)
    typed = "SELECT 1\n  AS n;\ntables\ncolumns nodes\ncolumns nothing\nDELETE FROM frames;\nnonsense\n;\nrefresh\n\nhelp columns\nselect 2 as m;\n"
    typed += "exit\nselect 3;"
    shown = CliRunner().invoke(main, ["pipeline", "shell", "--tables", str(output)], input=typed)
    assert shown.exit_code == 0
    words = shown.stdout.split()
    assert words[:4] == ["n", "1", "completeness", "connections"]
    assert words[-2:] == ["m", "2"], "what is behind exit is not run"
    assert any(line.startswith("complete_until  timestamp") for line in shown.stdout.splitlines())
    assert "The columns of a table or view, and their types: columns NAME." in shown.stdout
    assert [line.partition(":")[0] for line in shown.stderr.splitlines()] == ["framegate"] * 3
    assert CliRunner().invoke(main, ["pipeline", "shell", "--tables", f"{output}/none"]).exit_code == 2
