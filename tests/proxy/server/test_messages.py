"""The declarations of messages: complete, unambiguous, and as the module's table says."""

import typing
from typing import Any

import pytest

from proxy.server import messages
from proxy.server.shape import shape_of

DECLARED = [each for each in vars(messages).values() if typing.is_typeddict(each) and "type" in each.__annotations__]
COMMANDS = typing.get_args(messages.Command)


def words(declared: Any) -> tuple[str, ...]:
    return typing.get_args(typing.get_type_hints(declared)["type"])


@pytest.mark.parametrize("declared", DECLARED, ids=lambda each: each.__name__)
def test_each_message_can_be_judged_and_has_a_word_of_its_own_kind(declared: Any) -> None:
    assert shape_of(declared).fault({}) != ""
    assert words(declared)
    assert "type" in declared.__required_keys__


def test_no_two_commands_and_no_two_notices_have_one_word() -> None:
    for union in (messages.Command, messages.Notice):
        found = [word for each in typing.get_args(union) for word in words(each)]
        assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "declared", [messages.StartMessage, messages.ReadyMessage, messages.FailedMessage, *COMMANDS], ids=lambda each: each.__name__
)
def test_the_modules_table_names_each_command_and_what_it_takes(declared: Any) -> None:
    assert messages.__doc__ is not None
    for word in words(declared):
        (line,) = (line for line in messages.__doc__.splitlines() if line.startswith("    ") and f" {word} " in f"{line} ")
        for key in declared.__annotations__.keys() - {"type", "id"}:
            assert key in line or (declared is messages.StartMessage and "…" in line)
