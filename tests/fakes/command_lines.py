"""Command lines that a text tells people to type."""

from pathlib import Path

import click

from framegate.control.cli.commands import main

TAP = "/var/lib/framegate/tap"  # where the sidecar's tap is; commands look whether it is there


def parse(command: str, tap: Path) -> None:
    """Parse a command line of ``framegate``, and do nothing else. ``command``: as it is typed. ``tap``: an empty folder, in place of ``TAP``. Raises
    click.ClickException: there is no such command, option or value.
    """
    words = command.replace(TAP, str(tap)).split()[1:]
    if words == ["--version"]:
        return
    with main.make_context("framegate", words) as context:
        node: click.Command | None = main
        name: str | None = ""
        while isinstance(node, click.Group):
            name, node, words = node.resolve_command(context, words)
        assert node is not None, "click names what it does not know"
        node.make_context(name, words, parent=context).close()
