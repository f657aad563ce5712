"""inject and remove: the user's text stays byte for byte, a second injection changes nothing, and the result has the right contents."""

import dataclasses
import json
import random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from framegate.control.kubernetes.inject import RECORD, Injector, remove
from framegate.control.kubernetes.manifest import KINDS, ManifestError
from framegate.control.kubernetes.objects import Wanted
from framegate.control.kubernetes.pod_requirements import PodRequirements
from framegate.control.kubernetes.sidecar import Options
from tests.fakes.cases import each_of

DEPLOYMENT = """\
# The lookup service.
apiVersion: apps/v1
kind: Deployment
metadata:
    name: 'lookup'       # a name
spec:
    selector: {matchLabels: {app: lookup}}
    template:
        metadata:
            labels: {app: lookup}   # its pods
        spec:
            # What runs.
            containers:
            - name: lookup
              image: "lookup:1"

              args: [ "--port" , '9190' ]   # spaces stay
            # the end
# the very end
"""
RECREATED = DEPLOYMENT.replace("spec:\n    selector", "spec:\n    strategy: {type: Recreate}\n    selector")
EVERYTHING = Wanted(
    issuer=("Issuer", "ca"), network_policy=True, pod_monitor=True, disruption_budget=True, tap_claim_bytes=4 << 30, dns_names=("a.example.com",)
)
WAIT = {"preStop": {"sleep": {"seconds": 35}}}
OWN = {"preStop": {"exec": {"command": ["stop"]}}}
TEXT = "node: edge\nlisteners: []\n\n  # a comment, and spaces   \nupstreams: []\n"


def inject(text: str, options: Options | None = None, needs: PodRequirements | None = None, wanted: Wanted | None = None) -> str:
    return Injector(options or Options(), needs or PodRequirements(), wanted or Wanted()).inject(text)


def data(text: str) -> list[Any]:
    return list(YAML(typ="safe", pure=True).load_all(text))


def template_of(item: dict[str, Any]) -> dict[str, Any]:
    found = item
    for key in KINDS[item["kind"]][1]:
        found = found[key]
    return found


def in_spec(*lines: str) -> str:
    """The Deployment with more in its pods' specification."""
    return DEPLOYMENT.replace("            containers:\n", "".join(f"            {line}\n" for line in (*lines, "containers:")))


def lines_of(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def test_what_was_there_stays_line_for_line_twice_is_once_and_remove_restores_it() -> None:
    injected = inject(DEPLOYMENT)
    kept = iter(lines_of(injected))
    assert all(line in kept for line in lines_of(DEPLOYMENT) if "labels: {app: lookup}   #" not in line)
    assert '            labels: {app: lookup, "framegate.io/sidecar": "true"}   # its pods\n' in lines_of(injected)
    assert inject(injected) == injected
    assert remove(injected) == (DEPLOYMENT, ["Deployment lookup"])
    assert remove(DEPLOYMENT) == (DEPLOYMENT, [])
    marked = inject("\ufeff" + DEPLOYMENT)
    assert (marked, remove(marked)[0]) == ("\ufeff" + injected, "\ufeff" + DEPLOYMENT), "with a byte order mark"


@each_of("ending", ["", "\n", "\n\n", "\n...\n", "\n---\n"])
def test_a_stream_may_end_as_it_likes(ending: str) -> None:
    text = DEPLOYMENT.rstrip("\n") + ending
    injected = inject(text, Options(tap_claim=None), PodRequirements(text=TEXT), Wanted(network_policy=True))
    assert remove(injected)[0] == text
    assert [item["kind"] for item in data(injected) if item] == ["Deployment", "ConfigMap", "NetworkPolicy"]


@each_of("kind", KINDS)
def test_every_kind_gains_the_same(kind: str) -> None:
    group, path = KINDS[kind]
    pod: Any = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    for key in reversed(path):
        pod = {key: pod}
    item = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, **pod}
    item.setdefault("metadata", {})["name"] = "a"
    text = json.dumps(item)
    (injected,) = data(inject(text))
    spec = template_of(injected)["spec"]
    assert [container["name"] for container in spec["initContainers"]] == ["framegate"]
    assert spec["initContainers"][0]["restartPolicy"] == "Always"
    assert template_of(injected)["metadata"]["labels"]["framegate.io/sidecar"] == "true"
    assert remove(inject(text))[0] == text


def test_items_of_a_list_are_injected_and_other_objects_are_left_alone() -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"
    pod = "- apiVersion: v1\n  kind: Pod\n  metadata:\n    name: a\n  spec:\n    containers:\n    - {name: a}\n"
    listed = f"apiVersion: v1\nkind: List\nitems:\n{pod}- {{kind: Service}}\n"
    text = f"{service}---\n{listed}---\n{DEPLOYMENT}"
    injected = inject(text, needs=PodRequirements(text=TEXT))
    assert injected.startswith(service)
    found = data(injected)
    assert found[1]["items"][0]["spec"]["initContainers"][0]["name"] == "framegate"
    assert found[1]["items"][1] == {"kind": "Service"}
    assert [item["kind"] for item in found] == ["Service", "List", "Deployment", "ConfigMap", "ConfigMap"]
    assert found[3]["data"] == {"framegate.yaml": TEXT}
    assert remove(injected)[0] == text


@each_of("indent", [None, 2, 4])
def test_json_stays_json(indent: int | None) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ä", "labels": {"a": "ä"}}, "spec": {"containers": [{"name": "a"}], "volumes": []}}
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}, indent=indent, ensure_ascii=False) + "\n"
    injected = inject(text, needs=PodRequirements(text=TEXT), wanted=Wanted(network_policy=True))
    kinds = [item["kind"] for item in json.loads(injected)["items"]]
    assert kinds == ["Pod", "ConfigMap", "NetworkPolicy"]
    assert inject(injected, needs=PodRequirements(text=TEXT), wanted=Wanted(network_policy=True)) == injected
    assert remove(injected)[0] == text


@each_of("indent", [None, 2])
@each_of("ending", ["", "\n", " \n\n"])
def test_an_object_of_json_becomes_a_list_when_others_come_beside_it(indent: int | None, ending: str) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "a"}]}}, indent=indent) + ending
    assert json.loads(inject(text))["spec"]["initContainers"][0]["name"] == "framegate"
    injected = inject(text, needs=PodRequirements(text=TEXT))
    assert [item["kind"] for item in json.loads(injected)["items"]] == ["Pod", "ConfigMap"]
    assert inject(injected, needs=PodRequirements(text=TEXT)) == injected
    assert inject(injected) == inject(text)
    assert remove(injected)[0] == text


def test_a_stream_of_json_stays_a_stream() -> None:
    pod = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "a"}]}})
    text = f"{pod}\n---\n{pod}"
    injected = inject(text, needs=PodRequirements(text=TEXT))
    assert [item["kind"] for item in data(injected)] == ["Pod", "Pod", "ConfigMap"]
    assert remove(injected)[0] == text


def test_another_configuration_makes_other_pods_and_two_workloads_share_no_config_map() -> None:
    other = DEPLOYMENT.replace("name: 'lookup'", "name: other")
    found = data(inject(f"{DEPLOYMENT}---\n{other}", needs=PodRequirements(text=TEXT)))
    mounted = [template_of(item)["spec"]["volumes"][0]["configMap"]["name"] for item in found[:2]]
    assert mounted == [item["metadata"]["name"] for item in found[2:]]
    assert len({*mounted, ADDED}) == 2
    changed = data(inject(inject(DEPLOYMENT, needs=PodRequirements(text=TEXT)), needs=PodRequirements(text=TEXT + "# more")))
    assert [item["kind"] for item in changed] == ["Deployment", "ConfigMap"]
    assert changed[1]["metadata"]["name"] not in mounted
    assert template_of(changed[0])["spec"]["volumes"][0]["configMap"]["name"] == changed[1]["metadata"]["name"]


def test_an_object_that_is_switched_off_is_left_alone() -> None:
    text = DEPLOYMENT.replace("    name: 'lookup'", "    labels: {framegate.io/inject: 'false'}\n    name: 'lookup'")
    injector = Injector(Options(), PodRequirements(), Wanted())
    assert (injector.inject(text), injector.injected) == (text, [])


def test_no_object_of_two_workloads_has_one_name_so_two_calls_never_meet() -> None:
    other = DEPLOYMENT.replace("name: 'lookup'", "name: other")
    everything = dataclasses.replace(EVERYTHING, dns_names=())
    calls = [data(inject(text, needs=PodRequirements(text=TEXT), wanted=everything)) for text in (DEPLOYMENT, other)]
    names = [(item["kind"], item["metadata"]["name"]) for call in calls for item in call]
    assert len(names) == len({*names}) == 12
    for workload, *items in calls:
        (certificate,) = [item for item in items if item["kind"] == "Certificate"]
        secrets = [volume["secret"]["secretName"] for volume in template_of(workload)["spec"]["volumes"] if "secret" in volume]
        assert secrets == [certificate["spec"]["secretName"]] == [certificate["metadata"]["name"]]
        assert certificate["spec"]["dnsNames"] == [workload["metadata"]["name"]]


def test_pods_without_labels_of_their_own_are_refused_where_something_would_choose_them() -> None:
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a}]}\n"
    assert inject(pod) != pod
    with pytest.raises(ManifestError, match="line 1: Pod a: its pods have no labels of their own"):
        inject(pod, wanted=Wanted(network_policy=True))


def test_settings_of_the_user_are_kept_and_a_group_is_added_only_for_a_claim() -> None:
    text = in_spec("securityContext: {fsGroup: 7}", "terminationGracePeriodSeconds: 90")
    spec = template_of(data(inject(text))[0])["spec"]
    assert (spec["securityContext"], spec["terminationGracePeriodSeconds"]) == ({"fsGroup": 7}, 90)
    assert remove(inject(text))[0] == text
    assert "securityContext" not in template_of(data(inject(DEPLOYMENT))[0])["spec"]
    claimed = inject(RECREATED, Options(tap_claim="tap"))
    assert template_of(data(claimed)[0])["spec"]["securityContext"]["fsGroup"] == 10001
    assert inject(claimed) == inject(RECREATED)
    assert remove(claimed)[0] == RECREATED


LIVE = in_spec("terminationGracePeriodSeconds: 30   # of whom").replace("    name: 'lookup'", "    uid: 0d5a\n    name: 'lookup'")


def test_the_grace_period_that_the_api_server_wrote_is_raised_and_comes_back() -> None:
    injector = Injector(Options(), PodRequirements(drain_s=19), Wanted())
    injected = injector.inject(LIVE)
    assert template_of(data(injected)[0])["spec"]["terminationGracePeriodSeconds"] == 54
    assert injector.notes == ["Deployment lookup: terminationGracePeriodSeconds, 30 as the API server writes where nobody has, becomes 54"]
    assert inject(injected, needs=PodRequirements(drain_s=19)) == injected
    assert remove(injected)[0] == LIVE


@each_of(
    ("was", "now"),
    [
        ("    uid: 0d5a\n", ""),
        (": 30 ", ": 29 "),
        (
            "    uid: 0d5a\n",
            "    uid: 0d5a\n    annotations:\n        kubectl.kubernetes.io/last-applied-configuration: '{\"terminationGracePeriodSeconds\":30}'\n",
        ),
    ],
)
def test_a_grace_period_that_somebody_wrote_is_refused_when_it_is_too_short(was: str, now: str) -> None:
    assert was in LIVE
    with pytest.raises(ManifestError, match="has terminationGracePeriodSeconds"):
        inject(LIVE.replace(was, now))


def test_a_claim_is_for_one_workload_in_all_texts() -> None:
    text = RECREATED
    other, elsewhere = text.replace("name: 'lookup'", "name: other"), text.replace("name: 'lookup'", "{name: other, namespace: b}")
    claimed = Options(tap_claim="tap")
    with pytest.raises(ManifestError, match="line 23: Deployment other: would use the tap's claim tap, which Deployment lookup uses"):
        inject(f"{text}---\n{other}", claimed)
    injector = Injector(claimed, PodRequirements(), Wanted())
    injector.inject(text)
    with pytest.raises(ManifestError, match="would use the tap's claim"):
        injector.inject(other)
    injector.inject(elsewhere.replace("metadata:\n    {name", "metadata: {name").replace("}       # a name", "}"))
    assert inject(f"{text}---\n{other}")
    assert inject(f"{text}---\n{other}", claimed, PodRequirements(tap_folder=None))


BROKERS = DEPLOYMENT.replace("Deployment", "StatefulSet").replace("    template:\n", "    replicas: 3\n    template:\n")


def test_each_pod_of_a_stateful_set_gets_a_claim_from_a_template() -> None:
    theirs = [
        BROKERS,
        f"{BROKERS.split('# the very end')[0]}    volumeClaimTemplates:\n    - metadata: {{name: data}}   # theirs\n      spec: {{}}\n",
        BROKERS.replace("    replicas: 3\n", "    volumeClaimTemplates: []   # none\n"),
        BROKERS.replace("    replicas: 3\n", "    volumeClaimTemplates: [{metadata: {name: data}}]\n"),
        json.dumps(data(BROKERS)[0]),
        json.dumps(data(BROKERS)[0], indent=3),
    ]
    for text in theirs:
        for size, shown in ((4 << 30, "4Gi"), (0, "2Gi"))[: 2 if text == BROKERS else 1]:
            injected = inject(text, Options(tap_claim="tap", fs_group=False), wanted=Wanted(tap_claim_bytes=size))
            (item,) = data(injected)
            before = data(text)[0]["spec"].get("volumeClaimTemplates") or []
            claim = {"metadata": {"name": "tap"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": shown}}}}
            assert item["spec"]["volumeClaimTemplates"] == [*before, claim]
            spec = template_of(item)["spec"]
            (mount,) = [mount["name"] for mount in spec["initContainers"][0]["volumeMounts"] if mount["mountPath"] == "/var/lib/framegate/tap"]
            assert (mount, "tap" in [volume["name"] for volume in spec["volumes"]]) == ("tap", False)
            assert inject(injected) == inject(text), "without the option"
            assert remove(injected)[0] == text
            live = json.loads(json.dumps(item))
            live["spec"]["volumeClaimTemplates"][-1] |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {"phase": "Pending"}}
            (left,) = data(remove(json.dumps(live))[0])
            assert (left["spec"].get("volumeClaimTemplates") or []) == before
    two = f"{BROKERS}---\n{BROKERS.replace('lookup', 'other')}"
    assert [item["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] for item in data(inject(two, Options(tap_claim="tap")))] == ["tap", "tap"]


ADDED = data(inject(DEPLOYMENT, needs=PodRequirements(text=TEXT)))[1]["metadata"]["name"]
THEIRS = f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {ADDED}}}\n"


def test_an_object_with_the_name_of_an_added_one_is_refused_in_any_of_the_texts() -> None:
    words = f"ConfigMap {ADDED} (exists|is in another manifest), and inject would add an object of the same name"
    with pytest.raises(ManifestError, match=f"line 21: {words}"):
        inject(f"{DEPLOYMENT}---\n{THEIRS}", needs=PodRequirements(text=TEXT))
    for texts in ((DEPLOYMENT, THEIRS), (THEIRS, DEPLOYMENT)):
        injector = Injector(Options(), PodRequirements(text=TEXT), Wanted())
        injector.inject(texts[0])
        with pytest.raises(ManifestError, match=words):
            injector.inject(texts[1])
    for good in (THEIRS.replace(f"name: {ADDED}", f"name: {ADDED}, namespace: other"), THEIRS.replace("ConfigMap", "Secret")):
        assert inject(f"{DEPLOYMENT}---\n{good}", needs=PodRequirements(text=TEXT))
    assert inject(f"{DEPLOYMENT}---\n{THEIRS}")


def test_what_the_user_changed_since_stays_when_framegate_goes() -> None:
    changed = inject(DEPLOYMENT).replace("terminationGracePeriodSeconds: 65", "terminationGracePeriodSeconds: 300")
    spec = template_of(data(remove(changed)[0])[0])["spec"]
    assert spec["terminationGracePeriodSeconds"] == 300
    added = inject(DEPLOYMENT).replace("            volumes:\n", "            volumes:\n            - {name: mine, emptyDir: {}}\n")
    assert template_of(data(remove(added)[0])[0])["spec"]["volumes"] == [{"name": "mine", "emptyDir": {}}]


@each_of(
    ("was", "now", "words", "line"),
    [
        ("labels: {app: lookup}", "labels: &l {app: lookup}", None, 0),
        ("selector: {matchLabels: {app: lookup}}", "selector: {matchLabels: &l {app: lookup}}", None, 0),
        ("template:\n", "template: &t\n", None, 0),
        ("        spec:\n", "        spec:\n            <<: {}\n", "<< may bring", 12),
        ("labels: {app: lookup} ", "labels: ok", "labels is a scalar", 10),
        ("kind: Deployment", "kind: Deployment\nkind: Deployment", "duplicate key kind", 4),
        ("            containers:", "           containers:\n  - [", "is not YAML", 0),
    ],
)
def test_what_cannot_be_added_to_safely_is_refused(was: str, now: str, words: str | None, line: int) -> None:
    text = DEPLOYMENT.replace(was, now, 1)
    assert text != DEPLOYMENT
    if words is None:
        assert remove(inject(text))[0] == text
        return
    with pytest.raises(ManifestError, match=words) as caught:
        inject(text)
    assert not line or caught.value.faults[0].line == line


@each_of("lines", [("? initContainers", ": - name: wait"), ("? volumes", ":", "  []")])
def test_a_result_with_another_meaning_is_refused(lines: tuple[str, ...]) -> None:
    text = in_spec(*lines)
    assert len(data(text)) == 1, "it is good YAML"
    with pytest.raises(ManifestError, match="has a form to which framegate cannot"):
        inject(text)


def test_labels_that_the_selector_shares_are_refused_since_it_cannot_change() -> None:
    shared = DEPLOYMENT.replace("matchLabels: {app: lookup}", "matchLabels: &l {app: lookup}").replace("labels: {app: lookup} ", "labels: *l ")
    with pytest.raises(ManifestError, match=r"Deployment lookup: labels is the alias \*l"):
        inject(shared)
    turned = DEPLOYMENT.replace("labels: {app: lookup} ", "labels: &l {app: lookup} ") + "more: *l\n"
    with pytest.raises(ManifestError, match=r"labels is used again as \*l"):
        inject(turned)


@each_of("record", ["", "{}", "[]", "null", '{"set":{},"volumes":[],"was":7}', '{"set":{"spec":{}},"volumes":3,"was":{}}', "1"])
def test_a_record_that_somebody_changed_is_refused(record: str) -> None:
    injected = inject(DEPLOYMENT)
    line = next(line for line in lines_of(injected) if RECORD in line)
    with pytest.raises(ManifestError, match="remove framegate by hand"):
        remove(injected.replace(line, line.split(RECORD)[0] + f"{RECORD}: '{record}'\n"))


def test_all_faults_of_all_workloads_are_named_at_once() -> None:
    bad = in_spec("hostNetwork: true", "terminationGracePeriodSeconds: 5")
    with pytest.raises(ManifestError) as caught:
        inject(f"{bad}---\n{bad}")
    assert [fault.line for fault in caught.value.faults] == [13, 14, 35, 36]


def test_remove_restores_the_meaning_of_a_text_that_another_tool_rewrote() -> None:
    injected = data(inject(DEPLOYMENT, None, PodRequirements(text=TEXT), EVERYTHING))
    rewritten = "---\n".join(yaml.safe_dump(item, sort_keys=True) for item in injected)
    assert [item for item in data(remove(rewritten)[0]) if item] == data(DEPLOYMENT)
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": injected})
    assert json.loads(remove(listed)[0])["items"] == data(DEPLOYMENT)


# ---- any manifest ----

BLOCK = ["", "# comment\n", "\n", "   # odd comment\n"]


@st.composite
def manifests(draw: st.DrawFn) -> str:
    """A stream of workloads and others, in many ways of writing."""
    chosen = random.Random(draw(st.integers(0, 2**32)))
    return "".join(document(chosen) for _ in range(chosen.randint(1, 3))).removesuffix(chosen.choice(["", "\n"]))


def document(chosen: random.Random) -> str:
    kind = chosen.choice([*KINDS, "Service"])
    group, path = KINDS.get(kind, ("", ("spec",)))
    metadata: dict[str, Any] = {}
    for name in ("labels", "annotations"):
        if chosen.random() < 0.5:
            metadata[name] = chosen.choice([{}, None, {"a": "b"}, {"app": "true", "b/c": "1"}])
    spec: dict[str, Any] = {"containers": [{"name": "app", "image": "x:1", "args": ["--a", "b c", "#no comment", "l1\nl2\n", "t"]}]}
    if chosen.random() < 0.5:
        spec["volumes"] = chosen.choice([[], None, [{"name": "v", "emptyDir": {}}], [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]])
    if chosen.random() < 0.5:
        spec["initContainers"] = chosen.choice([[], None, [{"name": "i", "image": "y"}]])
    if chosen.random() < 0.5:
        spec["securityContext"] = chosen.choice([{}, None, {"runAsNonRoot": True}, {"fsGroup": 5}, {"fsGroupChangePolicy": "Always"}])
    if chosen.random() < 0.3:
        spec["terminationGracePeriodSeconds"] = chosen.choice([47, 600])
    template: dict[str, Any] = {"spec": spec}
    if metadata or chosen.random() < 0.5:
        template["metadata"] = metadata or chosen.choice([None, {}])
    items = list(template.items())
    chosen.shuffle(items)
    body: Any = dict(items)
    for key in reversed(path):
        body = {key: body}
    if path:
        body = {"metadata": {"name": "m", "namespace": chosen.choice(["one", "two"])}, **body}
    else:
        body["metadata"] = {"name": "m", **(body.get("metadata") or {})}
    item = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, **body}
    written = write(chosen, item, 0, chosen.choice([2, 2, 3, 4]), chosen.choice([0, 2, 4]))
    return f"{chosen.choice(BLOCK)}---{chosen.choice(['', ' # start'])}\n{written}"


def scalar(chosen: random.Random, value: object) -> str:
    if value is None:
        return chosen.choice(["", " null", " ~"])
    if isinstance(value, bool | int):
        return f" {json.dumps(value)}"
    assert isinstance(value, str)
    plain = value.replace("-", "").isalnum() and value not in ("true", "1") and not value.startswith("-")
    return " " + chosen.choice([json.dumps(value), *([value] if plain else []), *([f"'{value}'"] if "\n" not in value else [])])


def write(chosen: random.Random, value: Any, column: int, step: int, offset: int) -> str:
    """Block or flow style, with comments and blank lines wherever there may be some; each line ends."""
    lines = ""
    members = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
    for key, item in members:
        lines += chosen.choice(BLOCK) if chosen.random() < 0.2 else ""
        head = " " * column + ("-" if key is None else chosen.choice([key, json.dumps(key)]) + ":")
        end = chosen.choice(["", "", " # said"]) + "\n"
        if isinstance(item, dict | list) and (not item or chosen.random() < 0.15):
            spaced = json.dumps(item, indent=chosen.choice([None, None, 1])).replace("\n", "\n" + " " * (column + 1))
            lines += f"{head} {spaced}{end}"
        elif isinstance(item, dict | list):
            below = column + (offset if isinstance(item, list) and key is not None else step)
            inner = write(chosen, item, below, step, offset)
            first = inner.splitlines()[0]
            if key is None and first.strip() and not first.strip().startswith("#") and below > column + 1:
                lines += head + " " * (below - column - 1) + inner[below:]
            else:
                lines += head + end + inner
        elif isinstance(item, str) and "\n" in item and chosen.random() < 0.5:
            style = chosen.choice(["|", ">", "|+", "|-"])
            lines += f"{head} {style}\n" + "".join(f"{' ' * (column + step)}{line}\n" for line in item.splitlines()) + chosen.choice(["", "\n"])
        else:
            lines += head + scalar(chosen, item) + end
    return lines


@pytest.mark.slow  # the parser, in Python, reads each stream six times; the seeds differ from run to run
@settings(max_examples=6, deadline=None)
@given(manifests(), st.booleans(), st.booleans())
def test_any_manifest_comes_back_as_it_was_and_says_what_it_should(text: str, windows: bool, objects: bool) -> None:
    if windows:
        text = text.replace("\n", "\r\n")
    needs = dataclasses.replace(PodRequirements(), text=TEXT) if objects else PodRequirements()
    before, wanted = data(text), Wanted(issuer=("Issuer", "ca") if objects else None)
    injected = inject(text, None, needs, wanted)
    assert inject(injected, None, needs, wanted) == injected
    assert remove(injected)[0] == text
    after = data(injected)
    assert len(after) >= len(before)
    for old, new in zip(before, after, strict=False):
        if old["kind"] == "Service":
            assert new == old
            continue
        spec, was = template_of(new)["spec"], template_of(old)["spec"]
        assert spec["initContainers"][1:] == (was.get("initContainers") or [])
        assert spec["volumes"][: -len([v for v in spec["volumes"] if v["name"].startswith("framegate-")])] == (was.get("volumes") or [])
        assert spec["containers"] == [{**container, "lifecycle": WAIT} for container in was["containers"]]


@each_of(
    ("lifecycle", "now", "notes"),
    [
        (None, WAIT, 0),
        ("", WAIT, 0),
        ("{}", WAIT, 0),
        ("{postStart: {sleep: {seconds: 1}}}", {"postStart": {"sleep": {"seconds": 1}}, **WAIT}, 0),
        ("{preStop: {exec: {command: [stop]}}}", OWN, 1),
        ("{preStop: {sleep: {seconds: 36}}}", {"preStop": {"sleep": {"seconds": 36}}}, 0),
    ],
)
def test_each_container_without_a_hook_serves_until_the_connections_of_other_pods_have_ended(lifecycle: str | None, now: Any, notes: int) -> None:
    given = "" if lifecycle is None else f"              lifecycle: {lifecycle}\n"
    text = DEPLOYMENT.replace("            # the end\n", f"{given}            - {{name: second, image: b}}   # beside\n            # the end\n")
    injector = Injector(Options(), PodRequirements(), Wanted())
    injected = injector.inject(text)
    first, second = template_of(data(injected)[0])["spec"]["containers"]
    assert (first["lifecycle"], second["lifecycle"]) == (now, WAIT)
    assert len(injector.notes) == notes
    assert inject(injected) == injected
    assert remove(injected)[0] == text
    local = inject(text, needs=PodRequirements(data_ports=(), inner_ports=(9092,)))
    assert "seconds: 35" not in local


def test_a_wait_that_somebody_changed_stays() -> None:
    changed = inject(DEPLOYMENT).replace("seconds: 35", "seconds: 50")
    (container,) = template_of(data(remove(changed)[0])[0])["spec"]["containers"]
    assert container["lifecycle"] == {"preStop": {"sleep": {"seconds": 50}}}


def test_a_container_that_is_used_again_by_an_alias_is_refused() -> None:
    text = DEPLOYMENT.replace("- name: lookup\n", "- &app\n              name: lookup\n").replace("            # the end\n", "            - *app\n")
    with pytest.raises(ManifestError, match="is used again as"):
        inject(text)
