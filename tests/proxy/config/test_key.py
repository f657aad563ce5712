import dataclasses
import json
from typing import Annotated

import pytest

from framegate.proxy.config.key import Key, field_types, keys, model_from_wire
from tests.fakes.cases import each_of


@dataclasses.dataclass(frozen=True)
class Inner:
    wait_ms: Annotated[int, Key("ms", (0, 10))] = 1


@dataclasses.dataclass(frozen=True)
class Outer:
    inner: Inner
    maybe: Inner | None = None
    many: tuple[Inner, ...] = ()
    words: Annotated[tuple[str, ...], Key("address")] = ()
    shares: Annotated[dict[str, int], Key("percent", (1, 100), effect="now")] = dataclasses.field(default_factory=dict)


FULL = Outer(inner=Inner(5), maybe=Inner(), many=(Inner(2), Inner(3)), words=("a", "b"), shares={"x": 7})


def test_what_is_said_of_a_field_is_found_and_its_type_is_the_plain_one() -> None:
    assert keys(Inner) == {"wait_ms": Key("ms", (0, 10))}
    assert (keys(Outer)["shares"].effect, keys(Outer)["words"].effect, keys(Outer)["inner"]) == ("now", None, Key())
    assert field_types(Outer) == {
        "inner": Inner,
        "maybe": Inner | None,
        "many": tuple[Inner, ...],
        "words": tuple[str, ...],
        "shares": dict[str, int],
    }


@each_of("model", [FULL, Outer(inner=Inner())])
def test_a_model_comes_back_from_json_as_it_was(model: Outer) -> None:
    assert model_from_wire(Outer, json.loads(json.dumps(dataclasses.asdict(model)))) == model


@each_of("row", [{}, {"wait_ms": 1, "colour": "red"}, [], ["wait_ms"], "wait_ms", 3, None])
def test_a_wrong_shape_is_a_type_error(row: object) -> None:
    with pytest.raises(TypeError):
        model_from_wire(Inner, row)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        model_from_wire(Outer, {**dataclasses.asdict(FULL), "inner": row})
