"""The declarations of a handler process's messages: complete, unambiguous, and as the module's text says."""

import typing
from typing import Any

import pytest

from proxy.server import handler_messages
from proxy.server.handler_messages import HandlerNotice, HandlerReadyMessage, HandlerStartMessage
from proxy.server.shape import shape_of


def words(declared: Any) -> tuple[str, ...]:
    return typing.get_args(typing.get_type_hints(declared)["type"])


@pytest.mark.parametrize("declared", [HandlerStartMessage, HandlerReadyMessage], ids=lambda each: each.__name__)
def test_the_modules_text_names_what_a_handler_process_hears_and_says(declared: Any) -> None:
    text = handler_messages.__doc__
    assert text is not None
    assert shape_of(declared).fault({}) != ""
    assert words(declared)
    assert all(f"``{word}" in text for word in words(declared))
    assert all(key in text for key in declared.__annotations__.keys() - {"type"})


def test_no_two_notices_have_one_word() -> None:
    found = [word for each in typing.get_args(HandlerNotice) for word in words(each)]
    assert len(set(found)) == len(found)
