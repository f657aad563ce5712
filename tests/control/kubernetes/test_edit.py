"""Additions and removals leave the rest of the text as it is."""

import pytest

from framegate.control.kubernetes.edit import ANY, Layout, apply, block_text, graft, grafted, layout_of, prune
from framegate.control.kubernetes.manifest import ManifestError, Node, read_manifest
from tests.fakes.cases import each_of

LAYOUT = Layout(2, 2, "\n")


def root(text: str) -> Node:
    node = read_manifest(text).documents[0].root
    assert node is not None
    return node


def with_(text: str, wanted: dict[str, object], layout: Layout = LAYOUT) -> str:
    (document,) = read_manifest(text).documents
    return apply(text, graft(text, document.aliases, root(text), wanted, layout)[0])


@each_of(
    ("text", "wanted", "expected"),
    [
        ("a: 1  # said\n# end\n", {"b": 2}, "a: 1  # said\nb: 2\n# end\n"),
        ("a: 1", {"b": [2]}, "a: 1\nb:\n  - 2"),
        ("a: |\n  x\n\n# end\n", {"b": 2}, "a: |\n  x\nb: 2\n\n# end\n"),
        ("a: |+\n  x\n\n# end\n", {"b": 2}, "a: |+\n  x\n\nb: 2\n# end\n"),
        ("a:\n  - 1\nb: 2\n", {"a": [3]}, "a:\n  - 1\n  - 3\nb: 2\n"),
        ("a:\n- 1\n", {"a": [3], "b": 4}, "a:\n- 1\n- 3\nb: 4\n"),
        ("{a: 1}", {"b": {"c": 2}}, '{a: 1, "b": {"c": 2}}'),
        ("{a: 1, }", {"b": 2}, '{a: 1, "b": 2, }'),
        ("{a: [1]}", {"a": [2, 3]}, "{a: [1, 2, 3]}"),
        ('{\n  "a": 1\n}\n', {"b": {"c": 2}}, '{\n  "a": 1,\n  "b": {\n    "c": 2\n  }\n}\n'),
        ("initContainers:  # first\n  # one\n  - 1\n", {"initContainers": [0]}, "initContainers:  # first\n  - 0\n  # one\n  - 1\n"),
        ("{initContainers: [1]}", {"initContainers": [0]}, "{initContainers: [0, 1]}"),
        ("a: {}  # none\n", {"a": {"b": 1}}, "a:\n  b: 1  # none\n"),
        ("a:\n  b:\n    c: 1\nd: 2\n", {"a": {"b": {"e": 3}, "f": 4}}, "a:\n  b:\n    c: 1\n    e: 3\n  f: 4\nd: 2\n"),
    ],
)
def test_what_is_put_in_stands_behind_what_is_there(text: str, wanted: dict[str, object], expected: str) -> None:
    assert with_(text, wanted) == expected
    assert root(expected).value == grafted(root(text).value, wanted)


def test_text_is_quoted_where_any_version_of_yaml_takes_it_for_something_else() -> None:
    value = {"a": "true", "b": "no", "c": "1", "d": "a b", "e": 'say "x"', "f": "ok/1.2-x", "g": True, "h": 1, "i": "", "j": "0440", "k": "1e3"}
    written = block_text(value, LAYOUT, 0)
    plain = {line.partition(":")[0] for line in written.splitlines() if "'" not in line and '"' not in line}
    assert plain == {"f", "g", "h"}
    assert root(written).value == value


def test_lines_of_a_text_stay_lines_whatever_is_in_them() -> None:
    for text in ("a: 1\n", "a\n\n  b  \n", "\n\na\n", "a\n\n\n", "é\n", "a: 'b'\n# c\n", " lead\n", "a\ttab\n", "a\nb"):
        assert root(block_text({"k": {"v": text}}, LAYOUT, 0) + "\n").value == {"k": {"v": text}}, text


@each_of(
    ("text", "words"),
    [
        ("a: &x {b: 1}\nc: *x\n", "a is used again as"),
        ("c: &x {b: 1}\na: *x\n", "a is the alias"),
        ("<<: {a: {}}\n", "<< may bring a a"),
        ("a: text\n", "a is a scalar, and should be a mapping"),
        ("a: [1]\n", "a is a sequence, and should be a mapping"),
    ],
)
def test_what_would_change_more_than_was_asked_is_refused(text: str, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        with_(text, {"a": {"d": 2}})


@each_of(("text", "layout"), [("s:\n    c:\n    - 1\n    m:\n        n: 1\n", (4, 0)), ("s:\n  c:\n    - 1\n", (2, 2)), ("s: {c: [1]}\n", (2, 0))])
def test_new_lines_are_indented_as_their_neighbours(text: str, layout: tuple[int, int]) -> None:
    parent = root(text).get("s")
    assert parent is not None
    assert layout_of(text, parent, "c")[:2] == layout


@each_of(
    ("text", "cuts", "expected"),
    [
        ("a: 1\nb: 2\nc: 3\n", {"b": ANY}, "a: 1\nc: 3\n"),
        ("a: 1\nb: 2\nc: 3\n", {"b": 3, "c": 3}, "a: 1\nb: 2\n"),
        ("{a: 1, b: 2, c: 3}", {"a": ANY, "b": ANY}, "{c: 3}"),
        ("{a: 1, b: 2, c: 3}", {"b": ANY, "c": ANY}, "{a: 1}"),
        ("{a: 1, b: 2, c: 3}", {"a": ANY, "c": ANY}, "{b: 2}"),
        ("a:\n- name: x\n- name: y\n  z: 1\n- name: w\n", {"a": {"y"}}, "a:\n- name: x\n- name: w\n"),
        ("a:\n  - name: x\nb: 1\n", {"a": {"x"}}, "a: []\nb: 1\n"),
        ("a:\n  b: 1\nc: 2\n", {"a": {"b": ANY}}, "a: {}\nc: 2\n"),
        ("- a: 1\n  b: 2\n", {}, "- a: 1\n  b: 2\n"),
        ("a: [{name: x}, {name: y}]\n", {"a": {"x"}}, "a: [{name: y}]\n"),
    ],
)
def test_what_is_cut_out_takes_its_lines_along(text: str, cuts: dict[str, object], expected: str) -> None:
    assert apply(text, prune(text, root(text), cuts, {})[0]) == expected


def test_what_was_there_before_is_there_again() -> None:
    text = "a:\n  b: 1\nc:\n  d: 2\ne: 3\n"
    cuts = {"a": {"b": ANY}, "c": {"d": ANY}}
    assert apply(text, prune(text, root(text), cuts, {"a": "a: {} ", "c": None})[0]) == "a: {} \ne: 3\n"
