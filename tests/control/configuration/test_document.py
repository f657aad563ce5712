import pathlib

import pytest

from control.configuration.document import Document, document_of, key_of, parse_document, read_document
from control.configuration.fault import ConfigurationError


def parse(text: str) -> Document:
    return parse_document(text, pathlib.Path("/x"))


def test_every_value_knows_its_line_and_its_text() -> None:
    document = parse("a: 1\nb:\n  - c: 1.3\n    d: [x,\n        y]\n")
    assert document.data == {"a": 1, "b": [{"c": 1.3, "d": ["x", "y"]}]}
    assert document.line(("b",)) == 2
    assert document.line(("b", 0, "d", 1)) == 5
    assert document.line(("b", 0, "nothing", "below")) == 3
    assert document.texts["b", 0, "c"] == "1.3"


def test_a_key_that_stands_twice_is_a_fault_with_both_lines() -> None:
    document = parse("a: 1\nb: 2\na: 3\n")
    assert document.data == {"a": 1, "b": 2}
    assert [(fault.line, fault.key, fault.reason) for fault in document.faults] == [(3, "a", "stands here a second time; first on line 1")]


def test_anchors_and_aliases_work() -> None:
    assert parse("a: &x {k: 1}\nb: *x\n").data == {"a": {"k": 1}, "b": {"k": 1}}


def test_a_node_inside_itself_is_a_fault() -> None:
    assert [fault.reason for fault in parse("a: &x [*x]\n").faults] == ["contains itself"]


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [("a: [1\nb: 2\n", 2, "is not YAML"), ("- 1\n", 1, "must be a mapping"), ("a: 1\n---\nb: 1\n", 2, "YAML")],
)
def test_what_is_no_mapping_in_yaml_is_one_fault(text: str, line: int, part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    (fault,) = caught.value.faults
    assert part in fault.reason
    assert fault.line == line


def test_an_empty_document_is_a_fault() -> None:
    assert [fault.reason for fault in parse("# nothing\n").faults] == ["is empty"]


def test_tags_and_odd_keys_are_faults() -> None:
    assert ["has the tag" in fault.reason for fault in parse("a: !!binary aGk=\n").faults] == [True]
    assert ["must be a word" in fault.reason for fault in parse("[1, 2]: x\n").faults] == [True]


def test_a_file_that_cannot_be_read_is_one_fault(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_document(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(ConfigurationError, match=r"line 2.*not UTF-8"):
        read_document(tmp_path / "latin.yaml")


def test_a_long_value_is_shortened_in_a_fault() -> None:
    document = parse(f"a: {'x' * 100}\n")
    document.add(("a",), "is long")
    assert document.faults[0].value == "x" * 59 + "…"


def test_a_mapping_without_a_file_has_texts_but_no_lines() -> None:
    document = document_of({"a": {"b": [True, "x", None]}})
    assert document.texts == {("a", "b", 0): "true", ("a", "b", 1): "x"}
    assert document.line(("a", "b")) == 0


def test_paths_read_as_people_write_them() -> None:
    assert key_of(("listeners", 0, "tls", "key")) == "listeners[0].tls.key"
    assert key_of(()) == ""
