"""A manifest's text as a tree in which every value has its position, so that the text can be edited without changes elsewhere; and its workloads.

Nothing is written again by a YAML library, because that loses details: spaces in flow collections, widths, blank lines, the places of comments. The
parser of ruamel.yaml gives the position of each key and value, and ``edit`` changes the text there. Aliases are nodes of their own: what an alias
stands for is also used elsewhere and must not be changed through it. JSON is YAML in flow style and is handled alike.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator
from typing import Any, Final, Literal

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from framegate.control.configuration.reading import yaml_line, yaml_reason

MAX_BYTES: Final = 16 * 1024 * 1024
MAX_DEPTH: Final = 100
_INTEGER: Final = re.compile(r"[-+]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FRACTION: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?")
_LONE_CR: Final = re.compile(r"\r(?!\n)")
_TABS: Final = re.compile(r"(?<=[^ \t\r\n])[ \t]*\t[ \t]*(?=#|\r?$)", re.MULTILINE)
_MOST: Final = 1 << 63
_NULLS: Final = ("", "~", "null", "Null", "NULL")
_WORDS: Final = ((True, "y Y yes Yes YES true True TRUE on On ON"), (False, "n N no No NO false False FALSE off Off OFF"))
_BOOLEANS: Final = {word: value for value, words in _WORDS for word in words.split()}
_TEMPLATE: Final = ("spec", "template")
KINDS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "Deployment": ("apps", _TEMPLATE),
    "StatefulSet": ("apps", _TEMPLATE),
    "DaemonSet": ("apps", _TEMPLATE),
    "ReplicaSet": ("apps", _TEMPLATE),
    "Job": ("batch", _TEMPLATE),
    "CronJob": ("batch", ("spec", "jobTemplate", *_TEMPLATE)),
    "Pod": ("", ()),
}  # the group of each kind, and the path of its pod template
SWITCH: Final = "framegate.io/inject"  # a label of the object; with ``"false"`` inject leaves the object as it is


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Why a manifest cannot be used. ``line``: from 1; 0: the whole file. ``what``: the object, the reason, and what to do."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}" if self.line else self.what


class ManifestError(Exception):
    """One or more faults of a manifest; nothing of it was changed."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """One value of the text."""

    kind: Literal["scalar", "mapping", "sequence", "alias"]  # of the value
    start: int  # offset of its first character; of a collection in block style, of its first key or dash
    end: int  # offset behind its last character, without comments; of a block scalar, of the end of its last line
    line: int  # from 1
    column: int  # of ``start``, from 0
    flow: bool = False  # a collection in braces or brackets
    anchor: str | None = None  # the name by which aliases refer to it
    text: str = ""  # a scalar's value, an alias's name
    quoted: bool = False  # a scalar that is always text
    entries: list[tuple["Node", "Node"]] = dataclasses.field(default_factory=list)  # a mapping's keys and values
    items: list["Node"] = dataclasses.field(default_factory=list)  # a sequence's
    target: "Node | None" = None  # what an alias stands for; None: of another node, or of an alias within its target

    @property
    def followed(self) -> "Node":
        """The target of an alias; any other node itself."""
        return self if self.target is None else self.target

    def get(self, key: str) -> "Node | None":
        """The value of a mapping's key; None if there is none, or this is no mapping."""
        return next((value for name, value in self.entries if name.text == key), None)

    def key(self, key: str) -> "Node | None":
        return next((name for name, _ in self.entries if name.text == key), None)

    @property
    def empty(self) -> bool:
        return (self.kind == "scalar" and self.value is None) or (self.kind in ("mapping", "sequence") and not self.entries and not self.items)

    @property
    def value(self) -> Any:
        """As plain data, as kubectl reads it: by YAML 1.1, whole numbers in all their notations. Fractions stay text. An alias is a pair with its
        name.
        """
        if self.kind == "mapping":
            return {key.text: value.value for key, value in self.entries}
        if self.kind == "sequence":
            return [item.value for item in self.items]
        if self.kind == "alias":
            return ("*", self.text)
        if self.quoted:
            return self.text
        if self.text in _NULLS:
            return None
        if self.text in _BOOLEANS:
            return _BOOLEANS[self.text]
        return _number(self.text)


def _number(text: str) -> int | str:
    """A whole number of 64 bits; any other text as it is."""
    if len(text) > 80 or text[0] not in "+-.0123456789":
        return text
    digits = text.replace("_", "")
    if _INTEGER.fullmatch(digits):
        sign, size = (-1 if digits[0] == "-" else 1), digits.lstrip("+-")
        octal = len(size) > 1 and size[0] == "0" and size[1].isdigit()
        number = sign * int(size, 8 if octal else 0)
    elif _FRACTION.fullmatch(digits) and float(digits).is_integer():
        number = int(float(digits))
    else:
        return text
    return number if -_MOST <= number < _MOST else text


@dataclasses.dataclass(slots=True, eq=False)
class Document:
    """One document of a stream: from ``start``, the offset of its ``---``, to ``end``. ``root``: its value; None when it is empty. ``aliases``: names
    that its aliases refer to.
    """

    start: int
    end: int
    root: Node | None
    aliases: frozenset[str]


@dataclasses.dataclass(slots=True, eq=False)
class Manifest:
    """A text and its documents. ``json``: it is a JSON text, and must stay one."""

    text: str
    documents: list[Document]
    json: bool


def read_manifest(text: str) -> Manifest:
    """Read a stream of YAML documents, or a JSON text. Raises ManifestError: it is not YAML, with the line; too large or too deep; a key is there
    twice in one mapping.
    """
    if len(text) > MAX_BYTES:
        raise ManifestError([Fault(0, f"is larger than {MAX_BYTES >> 20} MiB")])
    lone = _LONE_CR.search(text)
    if lone is not None:
        line = text.count("\n", 0, lone.start()) + 1
        raise ManifestError([Fault(line, "ends a line with CR only: use LF or CRLF")])
    reader = _Reader(text)
    try:
        documents = reader.documents()
    except YAMLError as error:
        raise ManifestError([Fault(yaml_line(error), f"is not YAML: {yaml_reason(error)}")]) from error
    return Manifest(text, documents, text.lstrip()[:1] in ("{", "[") and len(documents) == 1)


class _Reader:
    """Turns the parser's events into nodes."""

    def __init__(self, text: str) -> None:
        self._text = text
        # The library drops a byte order mark and counts without it.
        self._shift = 1 if text.startswith("\ufeff") else 0
        # The library refuses a tab before a comment or a line's end, kubectl does not: spaces in its place keep all positions.
        spaced = _TABS.sub(lambda match: " " * len(match[0]), text) if "\t" in text else text
        self._events = YAML(typ="safe", pure=True).parse(spaced[self._shift :])
        self._aliases: set[str] = set()
        self._anchors: dict[str, Node | None] = {}

    def documents(self) -> list[Document]:
        found: list[Document] = []
        for event in self._events:
            name = type(event).__name__
            if name == "DocumentStartEvent":
                self._aliases = set()
                self._anchors = {}
                start = event.start_mark.index + self._shift if event.explicit else 0
                root = self._node(next(self._events), 0)
                bare = root.kind == "scalar" and not root.quoted and root.text == "" and root.start == root.end
                found.append(Document(start, len(self._text), None if bare else root, frozenset(self._aliases)))
        for document, following in itertools.pairwise(found):
            document.end = following.start
        return found

    def _node(self, event: Any, depth: int) -> Node:
        mark = event.start_mark
        if depth > MAX_DEPTH:
            raise ManifestError([Fault(mark.line + 1, f"lists and mappings are nested more than {MAX_DEPTH} deep")])
        name = type(event).__name__
        start, end = mark.index + self._shift, event.end_mark.index + self._shift
        place = (start, end, mark.line + 1, mark.column)
        if name == "AliasEvent":
            if event.anchor not in self._anchors:
                raise ManifestError([Fault(mark.line + 1, f"is not YAML: the alias *{event.anchor} has no anchor before it")])
            self._aliases.add(event.anchor)
            return Node("alias", *place, text=event.anchor, target=self._anchors[event.anchor])
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if name == "ScalarEvent":
            if event.style in ("|", ">"):
                place = (start, self._block_scalar_end(start, end), *place[2:])
            core = event.tag is not None and event.tag.endswith((":int", ":bool", ":null", ":float"))
            quoted = event.tag is not None or event.style not in (None, "")
            node = Node("scalar", *place, anchor=event.anchor, text=event.value, quoted=quoted and not core)
        elif name == "SequenceStartEvent":
            node = Node("sequence", *place, flow=bool(event.flow_style), anchor=event.anchor)
            self._sequence(node, depth)
        else:
            node = Node("mapping", *place, flow=bool(event.flow_style), anchor=event.anchor)
            self._mapping(node, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _sequence(self, node: Node, depth: int) -> None:
        for event in self._events:
            if type(event).__name__ == "SequenceEndEvent":
                node.end = event.end_mark.index + self._shift if node.flow else max([node.start, *(item.end for item in node.items)])
                break
            item = self._node(event, depth + 1)
            self._place_of_nothing(item, "-", node.items[-1].end if node.items else node.start)
            node.items.append(item)
        if not node.flow and node.items:
            node.start = self._text.rindex("-", 0, max(node.items[0].start, 1))  # behind an anchor or a tag
            node.column = node.start - (self._text.rfind("\n", 0, node.start) + 1)

    def _mapping(self, node: Node, depth: int) -> None:
        seen: dict[str, Node] = {}
        for event in self._events:
            if type(event).__name__ == "MappingEndEvent":
                node.end = event.end_mark.index + self._shift if node.flow else max([node.start, *(value.end for _, value in node.entries)])
                break
            key = self._node(event, depth + 1)
            first = seen.setdefault(key.text, key)
            if key.kind == "scalar" and first is not key and key.text != "<<":
                raise ManifestError([Fault(key.line, f"duplicate key {key.text}; the first is on line {first.line}")])
            value = self._node(next(self._events), depth + 1)
            self._place_of_nothing(value, ":", key.end)
            node.entries.append((key, value))
        if not node.flow and node.entries:
            node.start = node.entries[0][0].start  # behind an anchor or a tag
            node.column = node.entries[0][0].column

    def _block_scalar_end(self, start: int, end: int) -> int:
        """The end of a block scalar's last line; the parser gives the beginning of the next token."""
        if "+" in self._text[start : self._text.index("\n", start)] if "\n" in self._text[start:end] else False:
            return end - 1 if self._text[end - 1] == "\n" else end  # its blank lines are content
        return start + len(self._text[start:end].rstrip())

    def _place_of_nothing(self, node: Node, behind: str, after: int) -> None:
        """Place a missing value behind its colon or dash; the parser gives the beginning of the next token."""
        if node.kind == "scalar" and node.start == node.end and node.anchor is None:
            place = self._text.find(behind, after, node.start)
            if place >= 0:
                node.start = node.end = place + 1


@dataclasses.dataclass(slots=True, eq=False)
class Workload:
    """One object that has pods. ``root``: the object; ``path``: of its pod template; ``template``: the mapping there."""

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
        found = self.template.get("spec")
        assert found is not None, "it has been looked for"
        return found

    def value(self, *path: str) -> object:
        """A value of the object; None if there is none."""
        return value_at(self.root, path)


def workloads(manifest: Manifest) -> list[Workload]:
    """All workloads in the order of the text, with those in a List. Raises ManifestError: an object of such a kind has no pod template, or one that
    is an alias.
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


def node_at(node: Node | None, *path: str) -> Node | None:
    """The node at a path of keys; None if there is none."""
    for key in path:
        node = None if node is None else node.get(key)
    return node


def value_at(node: Node, path: tuple[str, ...]) -> object:
    """The value at a path; None if there is none."""
    found = node_at(node, *path)
    return None if found is None else found.value
