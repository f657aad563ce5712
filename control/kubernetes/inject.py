"""Adds framegate to the pods of a manifest, and removes it.

The pod template's annotation ``framegate.io/injected`` records what was added. So ``remove`` needs no options, and gives the original text, byte for
byte. A second injection first removes the first. Later changes of others stay: values that are no longer as they were set, and items in lists that
inject made. If another tool has rewritten the text, ``remove`` restores its meaning, not its bytes.

A changed text is read again before it is returned: it must have its former contents and what was to be added, nothing else.
"""

import json
from typing import Any, Final

from framegate.control.kubernetes.checks import containers_of, faults_of, grace_is_default, hook_of
from framegate.control.kubernetes.edit import ANY, Edit, Layout, Path, apply, block_text, graft, grafted, layout_of, newline_of, prune
from framegate.control.kubernetes.manifest import (
    Fault,
    Manifest,
    ManifestError,
    Node,
    Workload,
    node_at,
    objects_of,
    read_manifest,
    value_at,
    workloads,
)
from framegate.control.kubernetes.objects import MANAGED_BY, MANAGER, SCALED, Wanted, claims_of, key_of, objects_for, options_of, pods_of
from framegate.control.kubernetes.pod_requirements import PodRequirements
from framegate.control.kubernetes.sidecar import CONFIGURATION, CONTAINER, SIDECAR_LABEL, Options, application_wait, pod_template

RECORD: Final = "framegate.io/injected"
_LIST: Final = '{"apiVersion": "v1", "kind": "List", "items": [\n'
_LIST_END: Final = "\n]}"  # Around an object of JSON that others come beside: JSON has no streams. Written so, a list is taken for ours.
_GRACE: Final = frozenset({("spec", "terminationGracePeriodSeconds")})
_CLAIMS: Final = "volumeClaimTemplates"
_SHARED: Final = ("PersistentVolumeClaim",)
_NO_BUDGET: Final = (
    "which only knows how many pods there should be of a Deployment, StatefulSet or ReplicaSet: of others it would let none be evicted"
)
Key = tuple[str, str | None, str]


class Injector:
    """Adds framegate to manifests that belong to one change: an object that several of them share is written once."""

    def __init__(self, options: Options, needs: PodRequirements, wanted: Wanted) -> None:
        self._options = options
        self._needs = needs
        self._wanted = wanted
        self._written: set[Key] = set()
        self.injected: list[str] = []  # kinds and names of the workloads, in order
        self.notes: list[str] = []  # what was asked for and left out, and why
        self._claims: dict[str | None, Workload] = {}
        self._ours: set[Key] = set()
        self._theirs: set[Key] = set()

    def inject(self, text: str) -> str:
        """The text with framegate in each of its workloads that is not switched off, and with the objects beside them. Raises ManifestError: with
        every fault; nothing was changed.
        """
        base, _ = remove(text)
        manifest = read_manifest(base)
        found = [workload for workload in workloads(manifest) if not workload.switched_off]
        wanted: dict[int, dict[str, Any]] = {}
        edits: list[Edit] = []
        faults: list[Fault] = []
        for workload in found:
            options = options_of(workload, self._options, self._needs, self._wanted)
            template, claims = pod_template(options, self._needs), claims_of(options, self._needs, self._wanted)
            judged = [*faults_of(workload, template, options, self._needs), *(() if claims else self._claimed(workload))]
            faults += judged
            if judged:
                continue
            try:
                if self._wanted.chooses_pods:
                    pods_of(workload)
                raised = _GRACE if grace_is_default(workload, self._options, self._needs) else frozenset()
                added, addition = _addition(base, workload, template, claims, raised, application_wait(self._needs))
            except ManifestError as error:
                faults += [Fault(fault.line, f"{workload}: {fault.what}") for fault in error.faults]
                continue
            edits += added
            if raised:
                grace = template["spec"]["terminationGracePeriodSeconds"]
                self.notes.append(f"{workload}: terminationGracePeriodSeconds, 30 as the API server writes where nobody has, becomes {grace}")
            wanted |= addition
            self.notes += [
                f"{workload}: container {value_at(item, ('name',))} has a preStop hook of its own, which must last "
                f"{self._needs.wait_s} s, because connections of other pods end within that time"
                for item in containers_of(workload)
                if self._needs.wait_s and (hook := hook_of(item)) is not None and hook.get("sleep") is None
            ]
        faults += self._taken([workload for workload in found if id(workload.template) in wanted], manifest)
        if faults:
            raise ManifestError(faults)
        changed = apply(base, edits)
        believed = _checked(changed, [_expected(document.root, wanted) for document in manifest.documents if document.root is not None])
        self.injected += [str(workload) for workload in found]
        if self._wanted.disruption_budget:
            self.notes += [f"{workload}: gets no PodDisruptionBudget, {_NO_BUDGET}" for workload in found if workload.kind not in SCALED]
        return _with_objects(believed, self._objects(found))

    def _claimed(self, workload: Workload) -> list[Fault]:
        """One pod, so one workload, can use a claim."""
        if self._options.tap_claim is None or self._needs.tap_folder is None:
            return []
        first = self._claims.setdefault(workload.namespace, workload)
        if (first.kind, first.name) == (workload.kind, workload.name):
            return []
        words = "a second framegate on its folder does not start: inject each separately, with different claims"
        return [Fault(workload.root.line, f"{workload}: would use the tap's claim {self._options.tap_claim}, which {first} uses, and {words}")]

    def _taken(self, found: list[Workload], manifest: Manifest) -> list[Fault]:
        """Faults for the user's objects, in any text of the change, that have the name of an object to add."""
        ours = {key_of(item) for workload in found for item in self._objects_of(workload)}
        roots = [root for document in manifest.documents if document.root is not None for root in objects_of(document.root)]
        theirs: dict[Key, int] = {}
        for root in roots:
            kind, name, namespace = (value_at(root, path) for path in (("kind",), ("metadata", "name"), ("metadata", "namespace")))
            if isinstance(kind, str) and isinstance(name, str) and (namespace is None or isinstance(namespace, str)):
                theirs[kind, namespace, name] = root.line
        lost = "inject would add an object of the same name: rename it, or leave out the option that adds it"
        faults = [Fault(line, f"{key[0]} {key[2]} exists, and {lost}") for key, line in theirs.items() if key in ours | self._ours]
        faults += [Fault(0, f"{key[0]} {key[2]} is in another manifest, and {lost}") for key in sorted(ours & self._theirs, key=str)]
        self._ours |= ours
        self._theirs |= theirs.keys()
        return faults

    def _objects_of(self, workload: Workload) -> list[dict[str, Any]]:
        return objects_for(workload, options_of(workload, self._options, self._needs, self._wanted), self._needs, self._wanted)

    def _objects(self, found: list[Workload]) -> list[dict[str, Any]]:
        objects: list[dict[str, Any]] = []
        for workload in found:
            for item in self._objects_of(workload):
                if key_of(item) not in self._written:
                    self._written.add(key_of(item))
                    objects.append(item)
        return objects


def _addition(
    text: str, workload: Workload, template: dict[str, Any], claims: list[dict[str, Any]], replaced: frozenset[Path], wait: dict[str, Any]
) -> tuple[list[Edit], dict[int, dict[str, Any]]]:
    """Edits of one workload, and what they add, by the ``id`` of the node that it is added to. ``claims``: its further ``volumeClaimTemplates``.
    ``wait``: is added to each of the application's containers without a preStop hook.
    """
    addition: dict[str, Any] = {"metadata": template["metadata"], "spec": template["spec"]}
    _leave_out(workload, addition, replaced)
    shared = workload.document.aliases
    layout = layout_of(text, workload.spec, "containers")
    record: dict[str, Any] = {"set": _set_values(addition["spec"]), "volumes": [volume["name"] for volume in addition["spec"]["volumes"]]}
    annotations = addition["metadata"].setdefault("annotations", {})
    annotations[RECORD] = ""
    _, record["was"] = graft(text, shared, workload.template, addition, layout, (), replaced)
    added: list[tuple[Node, Path, dict[str, Any]]] = []
    spec = workload.root.get("spec")
    if claims and spec is not None:
        added.append((spec, (), {_CLAIMS: claims}))
        record["claims"] = [claim["metadata"]["name"] for claim in claims]
    waiting = {value_at(item, ("name",)): item for item in containers_of(workload) if wait and hook_of(item) is None}
    added += [(item, ("containers", name), wait) for name, item in waiting.items() if isinstance(name, str)]
    if waits := {path[1]: more for _, path, more in added if path}:
        record["waits"] = waits
    edits: list[Edit] = []
    for node, path, more in added:
        found, was = graft(text, shared, node, more, layout, path)
        edits += found
        record["was"] |= was
    annotations[RECORD] = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    found, _ = graft(text, shared, workload.template, addition, layout, (), replaced)
    return edits + found, {id(workload.template): addition, **{id(node): more for node, _, more in added}}


def _leave_out(workload: Workload, addition: dict[str, Any], replaced: frozenset[Path]) -> None:
    """Do not add what the user has set: any fsGroup of the pod is one of framegate's groups, and a longer grace period is good."""
    context = value_at(workload.spec, ("securityContext",))
    context = context if isinstance(context, dict) else {}
    if context.get("fsGroup") is not None:
        addition["spec"].pop("securityContext", None)
    elif context.get("fsGroupChangePolicy") is not None:
        addition["spec"].get("securityContext", {}).pop("fsGroupChangePolicy", None)
    if value_at(workload.spec, ("terminationGracePeriodSeconds",)) is not None and not replaced:
        addition["spec"].pop("terminationGracePeriodSeconds")
    labels = workload.value(*workload.path, "metadata", "labels")
    if isinstance(labels, dict) and SIDECAR_LABEL in labels:
        addition["metadata"].pop("labels")


def _set_values(spec: dict[str, Any]) -> dict[str, Any]:
    found = {f"spec.securityContext.{name}": value for name, value in spec.get("securityContext", {}).items()}
    if "terminationGracePeriodSeconds" in spec:
        found["spec.terminationGracePeriodSeconds"] = spec["terminationGracePeriodSeconds"]
    return found


def remove(text: str) -> tuple[str, list[str]]:
    """The text without framegate, and the workloads that had it. Raises ManifestError: an annotation of inject was changed so that it cannot be read;
    nothing was changed.
    """
    manifest = read_manifest(text)
    edits: list[Edit] = []
    removed: list[str] = []
    faults: list[Fault] = []
    for workload in workloads(manifest):
        note = node_at(workload.template, "metadata", "annotations", RECORD)
        if note is None:
            continue
        cuts = _cuts(note)
        if isinstance(cuts, Fault):
            faults.append(Fault(cuts.line, f"{workload}: {cuts.what}"))
            continue
        removed.append(str(workload))
        of_template, of_workload, was, waits = cuts
        edits += prune(text, workload.template, of_template, was)[0]
        if (spec := workload.root.get("spec")) is not None and of_workload:
            edits += prune(text, spec, of_workload, was)[0]
        for item in containers_of(workload):
            name = value_at(item, ("name",))
            if isinstance(name, str) and name in waits:
                edits += prune(text, item, waits[name], was, ("containers", name))[0]
    if faults:
        raise ManifestError(faults)
    return _without_objects(read_manifest(apply(text, edits)) if edits else manifest), removed


def shared_objects(text: str) -> list[str]:
    """Kinds and names of the objects in a text that inject added and that workloads of other texts may use as well."""
    roots = (root for document in read_manifest(text).documents if document.root is not None for root in objects_of(document.root))
    found = [(value_at(root, ("kind",)), value_at(root, ("metadata", "name"))) for root in roots if _is_ours(root)]
    return [f"{kind} {name}" for kind, name in found if kind in _SHARED]


def _cuts(note: Node) -> tuple[dict[str, Any], dict[str, Any], dict[str, str | None], dict[str, Any]] | Fault:
    """The arguments of ``prune`` in a record: for the pod template, for the workload around it, for both, and by name for containers."""
    try:
        record = json.loads(note.text)
        cuts: dict[str, Any] = {
            "metadata": {"labels": {SIDECAR_LABEL: ANY}, "annotations": {RECORD: ANY, CONFIGURATION: ANY}},
            "spec": {"initContainers": {CONTAINER}, "volumes": set(record["volumes"])},
        }
        for path, value in record["set"].items():
            place = cuts
            *above, last = path.split(".")
            for key in above:
                place = place.setdefault(key, {})
            place[last] = value
        claims = {_CLAIMS: set(record["claims"])} if "claims" in record else {}
        return cuts, claims, dict(record["was"]), dict(record.get("waits", {}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Fault(note.line, f"the annotation {RECORD}, in which inject records what it added, was changed ({error}): remove framegate by hand")


def _expected(node: Node, wanted: dict[int, dict[str, Any]]) -> Any:
    value = node.value
    if node.kind == "mapping":
        value = {key.text: _expected(item, wanted) for key, item in node.entries}
    elif node.kind == "sequence":
        value = [_expected(item, wanted) for item in node.items]
    return grafted(value, wanted[id(node)]) if id(node) in wanted else value


def _checked(text: str, expected: list[Any]) -> Manifest:
    """A changed text, read again. Raises ManifestError when its contents are not as expected."""
    try:
        manifest = read_manifest(text)
    except ManifestError as error:
        raise ManifestError(
            [Fault(0, f"has a form to which framegate cannot be added ({error}): write its pod templates as kubectl does")]
        ) from error
    if [document.root.value for document in manifest.documents if document.root is not None] != expected:
        raise ManifestError([Fault(0, "has a form to which framegate cannot be added safely: write its pod templates as kubectl does")])
    return manifest


# ---- objects beside the workloads ----


def _with_objects(manifest: Manifest, objects: list[dict[str, Any]]) -> str:
    text, newline = manifest.text, newline_of(manifest.text)
    if not objects:
        return text
    if manifest.json:
        root = manifest.documents[0].root
        if root is not None and (items := root.get("items")) is not None and items.items:
            edits, _ = graft(text, manifest.documents[0].aliases, root, {"items": objects}, Layout(2, 0, newline))
            return apply(text, edits)
        alone = text.rstrip()
        return f"{_LIST}{alone}{''.join(f',{newline}{json.dumps(item, ensure_ascii=False)}' for item in objects)}{_LIST_END}{text[len(alone) :]}"
    written = newline.join(f"---{newline}{block_text(item, Layout(2, 2, newline), 0)}" for item in objects)
    return f"{text}{written}{newline}" if text.endswith("\n") else f"{text}{newline}{written}"


def _without_objects(manifest: Manifest) -> str:
    text = manifest.text
    edits: list[Edit] = []
    for document in manifest.documents:
        root = document.root
        if root is None:
            continue
        items = root.get("items")
        if _is_ours(root):
            edits.append(Edit(document.start, document.end, "", 0))
        elif items is not None and items.kind == "sequence" and (ours := [item for item in items.items if _is_ours(item)]):
            kept = [item for item in items.items if item not in ours]
            if text.startswith(_LIST) and len(kept) == 1 and kept[0] is items.items[0]:
                return text[len(_LIST) : kept[0].end] + text[root.end :]
            edits.append(Edit(kept[-1].end if kept else items.items[0].start, ours[-1].end, "", 0))
    changed = apply(text, edits)
    unfinished = bool(edits) and not manifest.json and not text.endswith("\n")
    return changed.removesuffix("\n").removesuffix("\r") if unfinished and edits[-1].end == len(text) else changed


def _is_ours(root: Node) -> bool:
    return value_at(root, ("metadata", "labels", MANAGED_BY)) == MANAGER
