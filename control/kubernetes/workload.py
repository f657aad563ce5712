"""Which objects of a manifest have pods, and where in them what their pods are made from stands."""

import dataclasses
from collections.abc import Iterator
from typing import Final

from framegate.control.kubernetes.manifest import Document, Fault, Manifest, ManifestError, Node

__all__ = ["KINDS", "Workload", "objects_of", "value_at", "workloads"]

_TEMPLATE: Final = ("spec", "template")
KINDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "Deployment": ("apps", _TEMPLATE),
    "StatefulSet": ("apps", _TEMPLATE),
    "DaemonSet": ("apps", _TEMPLATE),
    "ReplicaSet": ("apps", _TEMPLATE),
    "Job": ("batch", _TEMPLATE),
    "CronJob": ("batch", ("spec", "jobTemplate", *_TEMPLATE)),
    "Pod": ("", ()),
}
"""The group of each kind, and the path of its pod template."""
SWITCH: Final = "framegate.io/inject"
"""A label of the object; ``"false"`` leaves it as it is."""


@dataclasses.dataclass(slots=True, eq=False)
class Workload:
    """One object that has pods. Attributes: ``root`` (the object), ``path`` (of its pod template), ``template`` (the mapping there)."""

    document: Document
    root: Node
    kind: str
    name: str
    namespace: str | None
    path: tuple[str, ...]
    template: Node
    switched_off: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    @property
    def spec(self) -> Node:
        """Of the pod."""
        found = self.template.get("spec")
        assert found is not None, "it has been looked for"
        return found

    def value(self, *path: str) -> object:
        """A value of the object; None where there is none."""
        return value_at(self.root, path)


def workloads(manifest: Manifest) -> list[Workload]:
    """All of them, in the order of the text; those in a List, too.

    Raises:
        ManifestError: an object of such a kind has no pod template, or one that is an alias.
    """
    found: list[Workload] = []
    faults: list[Fault] = []
    for document in manifest.documents:
        if document.root is None:
            continue
        for root in objects_of(document.root):
            workload = _workload(document, root)
            if isinstance(workload, Fault):
                faults.append(workload)
            elif workload is not None:
                found.append(workload)
    if faults:
        raise ManifestError(faults)
    return found


def objects_of(root: Node) -> Iterator[Node]:
    """A document's object, or those in its List."""
    kind, items = root.get("kind"), root.get("items")
    if kind is not None and kind.text.endswith("List") and items is not None and items.kind == "sequence":
        for item in items.items:
            yield from objects_of(item)
    elif root.kind == "mapping":
        yield root


def _workload(document: Document, root: Node) -> Workload | Fault | None:
    kind, version = value_at(root, ("kind",)), value_at(root, ("apiVersion",))
    if not isinstance(kind, str) or kind not in KINDS or not isinstance(version, str):
        return None
    group, path = KINDS[kind]
    if version.rpartition("/")[0] != group:
        return None
    name = value_at(root, ("metadata", "name")) or value_at(root, ("metadata", "generateName")) or "without a name"
    template = spec = root
    for key in (*path, "spec"):
        below = spec.get(key)
        if below is not None and below.kind == "alias":
            return Fault(below.line, f"{kind} {name}: {key} is the alias *{below.text}, so additions would also change its anchor; write it out")
        if below is None or below.kind != "mapping":
            return Fault(root.line, f"{kind} {name} has no pod template: {'.'.join((*path, 'spec'))} is missing, or is not a mapping")
        template, spec = spec, below
    namespace = value_at(root, ("metadata", "namespace"))
    off = value_at(root, ("metadata", "labels", SWITCH)) == "false"
    return Workload(document, root, kind, str(name), namespace if isinstance(namespace, str) else None, path, template, off)


def value_at(node: Node, path: tuple[str, ...]) -> object:
    """The value at a path; None where there is none."""
    current: Node | None = node
    for key in path:
        current = None if current is None else current.get(key)
    return None if current is None else current.value
