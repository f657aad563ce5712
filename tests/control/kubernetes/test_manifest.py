"""Every value has its position; other texts are refused with the line; objects that have pods."""

import time

import pytest

from framegate.control.kubernetes import manifest
from framegate.control.kubernetes.manifest import KINDS, ManifestError, Node, read_manifest, workloads
from tests.fakes.cases import each_of

TEXT = """\
# head
a: &x      # anchored
  - b: |
      lit

  # after
  -   deep: >+
        kept


c:
d: {e: 1, "f": [a, 'b'],}  # flow
z: *x
"long": one
  two
"""


def root(text: str) -> Node:
    (document,) = read_manifest(text).documents
    assert document.root is not None
    return document.root


def shown(text: str, node: Node | None) -> str:
    assert node is not None
    return text[node.start : node.end]


def test_values_stand_where_their_first_and_last_characters_are() -> None:
    top = root(TEXT)
    assert shown(TEXT, top.get("a")) == "- b: |\n      lit\n\n  # after\n  -   deep: >+\n        kept\n\n"
    first, second = top.get("a").items  # type: ignore[union-attr]
    assert (shown(TEXT, first), first.column, first.line) == ("b: |\n      lit", 4, 3)
    assert (shown(TEXT, second), second.column) == ("deep: >+\n        kept\n\n", 6)
    assert shown(TEXT, top.get("d")) == "{e: 1, \"f\": [a, 'b'],}"
    assert shown(TEXT, top.get("z")) == "*x"
    assert shown(TEXT, top.get("long")) == "one\n  two"
    assert shown(TEXT, top.key("long")) == '"long"'


def test_what_is_not_written_stands_behind_its_colon_or_dash() -> None:
    nothing = root(TEXT).get("c")
    assert nothing is not None
    assert (TEXT[: nothing.start].splitlines()[-1], shown(TEXT, nothing), nothing.empty) == ("c:", "", True)
    listed = root("- \n-  # said\n- a\n")
    assert [item.start for item in listed.items] == [1, 4, 15]


def test_values_are_plain_data() -> None:
    text = "a: 1\nb: '1'\nc: true\nd: ~\ne: 1.5\nf: !!str 2\ng: !!int 3\nh: [x]\ni: {j: *k}\nl: 012\nm: 99999999999999999999\nn: yes\n"
    assert root(text.replace("h: [x]", "h: &k [x]")).value == {
        "a": 1, "b": "1", "c": True, "d": None, "e": "1.5", "f": "2", "g": 3, "h": ["x"], "i": {"j": ("*", "k")}, "l": 10,
        "m": "99999999999999999999", "n": True,
    }  # fmt: skip


@each_of(
    ("written", "value"),
    [
        ("y, Y, yes, Yes, YES, on, On, ON, true", [True] * 9),
        ("n, N, no, No, NO, off, Off, OFF, false", [False] * 9),
        ("yEs, tRUE, oN, nUll", ["yEs", "tRUE", "oN", "nUll"]),
        ("0x2385, 0X1f, 0o17, 017, 0b11, 08, 3_0, 0x1_0, +3, -0x1, 00, -017, 1_", [9093, 31, 15, 15, 3, 8, 30, 16, 3, -1, 0, -15, 1]),
        ("1e3, 90.0, 1E2, 1., 0.5e1, 1.0, 30.0_0", [1000, 90, 100, 1, 5, 1, 30]),
        ("_1, 0b2, 0x, 12:30, 0x1p4, 1.5, .5, 1e999, -, .", ["_1", "0b2", "0x", "12:30", "0x1p4", "1.5", ".5", "1e999", "-", "."]),
        ("9223372036854775807, 9223372036854775808", [9223372036854775807, "9223372036854775808"]),
        ('!!int "3", !!bool yes, !!str yes, ! 3, "yes"', [3, True, "yes", "3", "yes"]),
    ],
)
def test_words_and_numbers_are_what_kubectl_takes_them_for(written: str, value: list[object]) -> None:
    assert root(f"a: [{written}]").value == {"a": value}


def test_a_tab_before_a_comment_or_a_lines_end_is_white_space() -> None:
    text = "a: b\t# c\nd:\t\r\ne: |\n  \tx\t# y\nf: 'g'\t \n"
    top = root(text)
    assert (shown(text, top.get("a")), shown(text, top.get("f"))) == ("b", "'g'")
    assert shown(text, top.get("e")) == "|\n  \tx\t# y"
    assert top.get("d").empty  # type: ignore[union-attr]


def test_documents_begin_at_their_dashes() -> None:
    text = "a: 1\n---\n---\nb: 2\n...\n--- # c\nc: 3"
    found = read_manifest(text).documents
    assert [text[document.start : document.end] for document in found] == ["a: 1\n", "---\n", "---\nb: 2\n...\n", "--- # c\nc: 3"]
    assert [document.root is None for document in found] == [False, True, False, False]


@each_of(("text", "json"), [('{"a": 1}', True), (" [1]\n", True), ("a: 1", False), ("{}\n---\n{}", False), ("", False)])
def test_json_is_known_by_its_first_character(text: str, json: bool) -> None:
    assert read_manifest(text).json is json


@each_of(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [\n", 3, "is not YAML"),
        ("a: 1\n\tb: 2\n", 2, "is not YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key a; the first is on line 1"),
        ("a: *nobody\n", 1, "is not YAML"),
        ("a: \x00\n", 0, "is not YAML"),
        ("a: 1\nb: 2\rc: 3\n", 2, "ends a line with CR only"),
        ("a: 1\r", 1, "ends a line with CR only"),
        ("{" * 102 + "}" * 102, 1, "nested more than 100 deep"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(ManifestError, match=words) as caught:
        read_manifest(text)
    assert caught.value.faults[0].line == line


def test_reading_takes_as_long_as_the_text_however_many_keys_a_mapping_has() -> None:
    def seconds(mappings: int, keys: int) -> float:
        mapping = "".join(f"  k{number}: 1\n" for number in range(keys))
        text = "".join(f"m{number}:\n{mapping}" for number in range(mappings))
        begin = time.process_time()
        read_manifest(text)
        return time.process_time() - begin

    assert seconds(1, 4000) < 2 * seconds(40, 100)


def test_a_text_that_is_too_large_is_refused_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MAX_BYTES", 4)
    assert read_manifest("a: 1").documents
    with pytest.raises(ManifestError, match="is larger than"):
        read_manifest("a: 12")


POD = "{metadata: {labels: {a: b}}, spec: {containers: []}}"
TEXTS = {
    "Pod": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n",
    "CronJob": f"apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: a}}\nspec: {{jobTemplate: {{spec: {{template: {POD}}}}}}}\n",
    "Job": f"apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec: {{template: {POD}}}\n",
    **{
        kind: f"apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: a, namespace: ns}}\nspec: {{template: {POD}}}\n"
        for kind in KINDS
        if KINDS[kind][0] == "apps"
    },
}


@each_of("kind", KINDS)
def test_every_kind_has_its_pod_template(kind: str) -> None:
    (found,) = workloads(read_manifest(TEXTS[kind]))
    assert (found.kind, found.name, str(found)) == (kind, "a", f"{kind} a")
    assert found.spec.value == {"containers": []}
    assert found.namespace == ("ns" if KINDS[kind][0] == "apps" else None)


@each_of(
    "text", ["kind: Deployment\n", TEXTS["Deployment"].replace("apps/v1", "example.com/v1"), "- a\n", "", "text", "kind: Service\napiVersion: v1\n"]
)
def test_other_texts_have_no_workloads(text: str) -> None:
    assert workloads(read_manifest(text)) == []


def test_lists_are_looked_into() -> None:
    items = "".join(f"- {text.replace(chr(10), chr(10) + '  ').rstrip()}\n" for text in TEXTS.values())
    assert [item.kind for item in workloads(read_manifest(f"apiVersion: v1\nkind: List\nitems:\n{items}"))] == list(TEXTS)


@each_of(
    ("was", "now", "words"),
    [
        ("spec: {template", "spec: {other", "Deployment a has no pod template: spec.template.spec is missing"),
        ("{containers: []}", "[]", "is missing, or is not a mapping"),
        ("{containers: []}", "*s", r"spec is the alias \*s"),
        ("template: {", "template: *s # {", r"template is the alias \*s"),
    ],
)
def test_without_a_pod_template_it_is_refused(was: str, now: str, words: str) -> None:
    text = TEXTS["Deployment"].replace("metadata: {name: a", "metadata: {x: &s {}, name: a").replace(was, now)
    if "#" in text:
        text = text.replace("spec: {template: *s # {metadata: {labels: {a: b}}, spec: {containers: []}}}", "spec: {template: *s}")
    with pytest.raises(ManifestError, match=words) as caught:
        workloads(read_manifest(text))
    assert caught.value.faults[0].line in (1, 4)


@each_of(("label", "off"), [('"false"', True), ("'true'", False), ("false", False)])
def test_a_label_switches_it_off(label: str, off: bool) -> None:
    text = TEXTS["Job"].replace("{name: a}", f"{{name: a, labels: {{framegate.io/inject: {label}}}}}")
    assert workloads(read_manifest(text))[0].switched_off is off
