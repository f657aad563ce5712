import pathlib
import subprocess
import sys

import pytest

from framegate.control.configuration.document import ConfigurationError, Document
from framegate.control.configuration.reading import MAX_BYTES, MAX_DEPTH, MAX_VALUES, parse_document, read_document


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
    assert [(fault.line, fault.key, fault.reason) for fault in document.faults] == [(3, "a", "is a duplicate key; it is already set on line 1")]


def laughs(levels: int) -> str:
    """Ten to the power of ``levels`` words, in one line for each level."""
    return "a0: &a0 [ha]\n" + "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, levels + 1))


def test_aliases_that_stand_for_a_billion_values_are_one_fault_in_little_time_and_memory(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_text(laughs(9))
    code = "import sys; from framegate.control.configuration.load import examine; print(*examine(sys.argv[1]).faults, sep='\\n')"
    done = subprocess.run(
        ["sh", "-c", 'ulimit -v 262144; exec "$@"', "sh", sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == f"line 6: a5: with what aliases repeat, the document has more than {MAX_VALUES:,} values\n", done.stderr


def test_a_chain_of_aliases_is_bounded_in_depth() -> None:
    text = "a0: &a0 [x]\n" + "".join(f"a{level}: &a{level} [*a{level - 1}]\n" for level in range(1, 2000))
    with pytest.raises(ConfigurationError, match=rf"line {MAX_DEPTH}: a{MAX_DEPTH - 1}: .*nested more than {MAX_DEPTH} deep"):
        parse(text)
    assert parse("".join(text.splitlines(keepends=True)[: MAX_DEPTH - 1])).faults == []


def test_what_is_nested_too_deep_is_one_fault() -> None:
    for text in ("a: " + "[" * 5000, "".join(" " * level + "a:\n" for level in range(200)), "? " * 5000, "- " * 5000):
        with pytest.raises(ConfigurationError, match=rf"line \d+: the document: .*more than {MAX_DEPTH} deep"):
            parse(text)


def test_a_document_of_too_many_values_is_one_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framegate.control.configuration.reading.MAX_VALUES", 6)
    assert parse("a: [1, 2, 3]\n").data == {"a": [1, 2, 3]}  # the document, the key, the list, three in it
    with pytest.raises(ConfigurationError, match="line 2: the document: has more than 6 keys and values"):
        parse("a: [1, 2,\n 3, 4]\n")


def test_a_file_that_is_too_large_is_not_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "framegate.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigurationError, match="is larger than 1024 KiB"):
        read_document(path)
    with pytest.raises(ConfigurationError, match="is larger than 1024 KiB"):
        read_document(pathlib.Path("/dev/zero"))
    path.write_bytes(b"#" * MAX_BYTES)
    assert [fault.reason for fault in read_document(path).faults] == ["is empty"]


def test_a_number_that_is_none_is_a_fault() -> None:
    kinds = {"!!int abc": "a whole number", "!!float x": "a number", "!!bool x": "true or false", "0b_": "a whole number"}
    for value, kind in {**kinds, "9" * 5000: "a whole number"}.items():
        assert [(fault.line, fault.key, fault.reason) for fault in parse(f"a: {value}\n").faults] == [(1, "a", f"cannot be read as {kind}")]


def test_what_is_no_mapping_in_yaml_is_one_fault() -> None:
    for text, line, part in (("a: [1\nb: 2\n", 2, "is not YAML"), ("- 1\n", 1, "must be a mapping"), ("a: 1\n---\nb: 1\n", 2, "YAML")):
        with pytest.raises(ConfigurationError) as caught:
            parse(text)
        assert [(fault.line, part in fault.reason) for fault in caught.value.faults] == [(line, True)], text


def test_tags_odd_keys_and_a_node_inside_itself_are_faults() -> None:
    for text, part in (("a: !!binary aGk=\n", "has the tag"), ("[1, 2]: x\n", "must be a word"), ("a: &x [*x]\n", "contains itself")):
        assert [part in fault.reason for fault in parse(text).faults] == [True], text


def test_a_file_that_cannot_be_read_is_one_fault(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_document(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(ConfigurationError, match=r"line 2.*not UTF-8"):
        read_document(tmp_path / "latin.yaml")


def test_relative_paths_start_where_the_path_says_and_not_where_a_link_leads(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a ConfigMap is mounted: the file is a link into a folder that is a link."""
    (tmp_path / "..1").mkdir()
    (tmp_path / "..1" / "framegate.yaml").write_text("node: a\n")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "framegate.yaml").symlink_to("..data/framegate.yaml")
    assert read_document(tmp_path / "framegate.yaml").folder == tmp_path
    monkeypatch.chdir(tmp_path)
    assert read_document(pathlib.Path("framegate.yaml")).folder == tmp_path
