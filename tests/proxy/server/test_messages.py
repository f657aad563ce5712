"""The declarations of messages: complete, unambiguous, and as the module's table says."""

import typing
from typing import Any

from framegate.proxy.server import messages
from framegate.proxy.server.schema import schema_of

DECLARED = [each for each in vars(messages).values() if typing.is_typeddict(each) and "type" in each.__annotations__]
COMMANDS = typing.get_args(messages.Command)


def words(declared: Any) -> tuple[str, ...]:
    return typing.get_args(typing.get_type_hints(declared)["type"])


def test_each_message_can_be_checked_and_has_a_word_of_its_own_kind() -> None:
    for declared in DECLARED:
        assert schema_of(declared).fault({}) != ""
        assert words(declared)
        assert "type" in declared.__required_keys__
    for union in (messages.Command, messages.Notice, messages.HandlerNotice):
        found = [word for each in typing.get_args(union) for word in words(each)]
        assert len(set(found)) == len(found)


def test_the_modules_table_names_each_command_and_what_it_takes() -> None:
    text = messages.__doc__
    assert text is not None
    for declared in (messages.StartMessage, messages.ReadyMessage, messages.FailedMessage, *COMMANDS):
        for word in words(declared):
            (line,) = (line for line in text.splitlines() if line.startswith("    ") and f" {word} " in f"{line} ")
            for key in declared.__annotations__.keys() - {"type", "id"}:
                assert key in line or (declared is messages.StartMessage and "…" in line)
    for declared in (messages.HandlerStartMessage, messages.HandlerReadyMessage):
        assert all(f"``{word}" in text for word in words(declared))
        assert all(key in text for key in declared.__annotations__.keys() - {"type"})
