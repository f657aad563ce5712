"""What has pods, and where."""

import pytest

from framegate.control.kubernetes.manifest import ManifestError, read_manifest
from framegate.control.kubernetes.workload import KINDS, workloads
from tests.fakes.cases import each_of

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
def test_what_only_looks_like_one_is_none(text: str) -> None:
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
