"""Shared options, and how help ends."""

from collections.abc import Iterator

import click
import pytest

from control.cli.commands import main
from control.cli.options import example


def commands(command: click.Command = main, name: str = "framegate") -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for child, below in command.commands.items():
            yield from commands(below, f"{name} {child}")


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_help_ends_with_an_example_of_that_command(name: str, command: click.Command) -> None:
    last = str(command.epilog).splitlines()[-1].strip()
    assert last.startswith((name, f'eval "$({name}'))


def test_every_command_that_calls_takes_address_and_output() -> None:
    local = {"check", "serve", "demo", "run", "completion", "inject"}
    on_this_machine = ("framegate tap ", "framegate users ")
    for name, command in commands():
        if not isinstance(command, click.Group) and name.split()[-1] not in local and not name.startswith(on_this_machine):
            assert {"address", "output"} <= {parameter.name for parameter in command.params}, name


def test_an_example_keeps_its_lines() -> None:
    assert example("a", "b") == "\b\nExample:\n  a\n  b"
