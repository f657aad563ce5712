"""framegate.proxy.kafka.program: few operations, and no schema that could make a walker loop or need more stack than it has."""

from framegate.proxy.kafka.program import (
    BYTES,
    END,
    FLAT,
    INT16,
    INT32,
    KIND_BITS,
    LEAVE,
    MARK,
    MAX_DEPTH,
    PEEK,
    SKIP,
    TAG,
    TAG_SIZE,
    TAGS,
    VARINT,
    compile_program,
)
from framegate.proxy.kafka.schema import Api, Field, apis

TEXT = "A:int32 B:int64 Name:string?0-1 Ids:[]uuid Hint:{At:int16}/1-1#3@1-1 Z:bool"
SOME = Api((0, "Some", 0, 1, 1, 1, TEXT, TEXT))


def code(version: int, *, answer: bool = True, head: bool = False, erase: int = -1, **marks: int) -> list[int]:
    paths = {path.replace("_begin", "<").replace("_end", ">"): number for path, number in marks.items()}
    return list(compile_program(SOME, version, answer=answer, marks=paths, head=head, erase=erase).code)


def read(what: int, kind: int) -> int:
    return what << KIND_BITS | kind


def test_fields_of_fixed_size_are_one_operation() -> None:
    rest = [read(BYTES, INT16), 1, read(FLAT, INT32), 0, 16, SKIP, 1, END, 1]
    assert code(0) == [SKIP, 4 + 12, *rest]
    assert code(0, answer=False) == [SKIP, 8, read(BYTES, INT16), 1, SKIP, 12, *rest]
    assert code(0, B_begin=5) == [SKIP, 8, MARK, 5, SKIP, 8, *rest]


def test_known_tagged_fields_are_walked_and_others_skipped() -> None:
    def tags(place: int, after: int, *known: int) -> list[int]:
        return [read(TAGS, VARINT), after, read(TAG, VARINT), read(TAG_SIZE, VARINT), place + 2, after, len(known) // 2, *known]

    fields = [SKIP, 12, read(BYTES, VARINT), 1, read(FLAT, VARINT), 0, 16, SKIP, 1]
    hint = [SKIP, 2, *tags(29, 36), LEAVE, 20, 39]
    assert code(1) == [SKIP, 4, *tags(2, 9), *fields, *tags(18, 39, 3, 27), *hint, END, 1]


def test_a_head_ends_behind_the_last_field_that_has_a_mark() -> None:
    assert code(0, head=True, Name_end=1) == [SKIP, 16, read(BYTES, INT16), 1, MARK, 1, END, 0]
    assert code(0, head=True, Nothing_end=1) == [SKIP, 4, END, 0]
    assert PEEK not in code(0, erase=-1)
    assert code(1, erase=9)[20:24] == [PEEK, 9, 0, 1], "before the number of each tagged field at the top"


def test_no_schema_needs_more_stack_than_there_is() -> None:
    def depth(fields: list[Field]) -> int:
        return max((3 + field.array + depth(field.fields) for field in fields if field.fields), default=3 + 1)

    assert max(depth(api.fields(answer)) for api in apis() for answer in (False, True)) * 2 < MAX_DEPTH


def test_every_element_of_an_array_has_a_byte() -> None:
    """So that a walk has no more steps than the message has bytes."""

    def empty(fields: list[Field], version: int, flexible: bool) -> list[str]:
        found = []
        for field in (field for field in fields if field.is_in(version) and field.fields):
            if field.array and not flexible and not any(inner.is_in(version) for inner in field.fields):
                found.append(field.name)
            found += empty(field.fields, version, flexible)
        return found

    for api in apis():
        for version in range(api.least, api.most + 1):
            for answer in (False, True):
                assert empty(api.fields(answer), version, api.is_flexible(version)) == [], (api.name, version)
