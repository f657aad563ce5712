"""The rows of questions and answers: one for each class of ``proxy.auth.questions``, with its fields."""

import dataclasses
import typing

import pytest

from proxy.auth import questions
from proxy.server.question_rows import ANSWERS, QUESTIONS
from proxy.server.shape import shape_of


def test_each_class_has_its_row() -> None:
    assert sorted(QUESTIONS) == sorted(each.__name__ for each in typing.get_args(questions.Question))
    assert sorted(ANSWERS) == sorted(each.__name__ for each in typing.get_args(questions.Answer))


@pytest.mark.parametrize("kind", [*QUESTIONS, *ANSWERS])
def test_a_row_has_the_fields_of_its_class(kind: str) -> None:
    row = {**QUESTIONS, **ANSWERS}[kind]
    assert list(row.__annotations__) == [field.name for field in dataclasses.fields(getattr(questions, kind))]
    assert row.__required_keys__ == set(row.__annotations__)


@pytest.mark.parametrize("kind", [kind for kind, row in {**QUESTIONS, **ANSWERS}.items() if row.__annotations__])
def test_what_is_wrong_with_a_row_is_said_without_a_word_of_what_is_in_it(kind: str) -> None:
    row = {**QUESTIONS, **ANSWERS}[kind]
    for name in row.__annotations__:
        others: dict[str, object] = dict.fromkeys(row.__annotations__, "canary")
        for value in ("canary", ["canary"], {"canary": "canary"}, 77):
            fault = shape_of(row).fault({**others, name: value})
            assert "canary" not in fault
            assert "77" not in fault
