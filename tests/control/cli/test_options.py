"""Shared options, and how help ends."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from framegate.control.cli import options
from framegate.control.cli.commands import main
from tests.fakes.cases import each_of


def commands(command: click.Command = main, name: str = "framegate") -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            below = command.get_command(context, child)
            assert below is not None
            yield from commands(below, f"{name} {child}")


@each_of(("name", "command"), list(commands()))
def test_every_help_ends_with_an_example_of_that_command(name: str, command: click.Command) -> None:
    last = str(command.epilog).splitlines()[-1].strip()
    assert last.startswith((name, f'eval "$({name}'))


def test_the_default_address_is_that_of_the_highest_role_that_this_user_may_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "DEFAULT_ADDRESS", f"unix:{tmp_path}/admin.sock")
    tmp_path.chmod(0o755)
    found = [options.openable()]
    for role in ("view", "operate", "admin"):
        (tmp_path / f"{role}.sock").touch()
        found.append(options.openable())
    assert found == [f"unix:{tmp_path}/{role}.sock" for role in ("admin", "view", "operate", "admin")]


def test_every_command_that_calls_takes_address_and_output() -> None:
    local = {"check", "serve", "demo", "completion", "inject", "init", "explain", "webhook"}
    on_this_machine = ("framegate pipeline ", "framegate tap ", "framegate users ")
    for name, command in commands():
        if not isinstance(command, click.Group) and name.split()[-1] not in local and not name.startswith(on_this_machine):
            assert {"address", "output"} <= {parameter.name for parameter in command.params}, name
