"""A YAML document becomes plain values, with the line of each.

The nodes that the YAML library composes are read here, because each key and scalar must keep its line and its text (``min_version: 1.3`` is a number
to YAML and a word to framegate). Duplicate keys, and unsupported values (tags, binary, dates as objects), become faults.

A document is bounded in bytes, depth and values; a value counts as often as aliases repeat it, since a file of 200 bytes may stand for a billion.

The reader takes 2 MiB: only the child that reads a file, and ``check``, load this module.
"""

import pathlib
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from framegate.control.configuration.document import MAX_BYTES as MAX_BYTES
from framegate.control.configuration.document import ConfigurationError, Document, Fault, Path, key_of, show

MAX_VALUES: Final = 50_000  # Keys, values and lists together; a listener has about 20
MAX_DEPTH: Final = 16  # of lists and mappings within each other; the deepest key of a configuration lies 4 deep
_TAG: Final = "tag:yaml.org,2002:"
_KINDS: Final = {"int": "a whole number", "float": "a number", "bool": "true or false"}


def read_document(path: pathlib.Path) -> Document:
    """Read a file. Raises ConfigurationError with one fault when it cannot be read or is not YAML at all."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigurationError([Fault(0, "", str(path), f"is larger than {MAX_BYTES // 1024} KiB, the limit")])
        text = data.decode("utf-8")
    except OSError as error:
        raise ConfigurationError([Fault(0, "", str(path), f"cannot be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigurationError([Fault(line, "", str(path), "is not UTF-8")]) from error
    # As the path was given: a mounted ConfigMap's file is a link into a folder that the next change takes away.
    return parse_document(text, path.absolute().parent)


class _Composer(Composer):
    """Refuses a document that is too large or too deep while it is composed, because composing recurses."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self._depth = 0
        self._values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose one value with all values below it."""
        self._values += 1
        line = self.parser.peek_event().start_mark.line + 1
        if self._depth > MAX_DEPTH:
            raise ConfigurationError([Fault(line, "", "", f"lists and mappings are nested more than {MAX_DEPTH} deep")])
        if self._values > MAX_VALUES:
            raise ConfigurationError([Fault(line, "", "", f"has more than {MAX_VALUES:,} keys and values")])
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def yaml_line(error: YAMLError) -> int:
    """The line of an error of the YAML library, from 1; 0: it has none."""
    mark = error.problem_mark or error.context_mark if isinstance(error, MarkedYAMLError) else None
    return mark.line + 1 if mark else 0


def yaml_reason(error: YAMLError) -> str:
    """The text of an error of the YAML library, in one line."""
    if isinstance(error, MarkedYAMLError):
        return ", ".join(part for part in (error.context, error.problem) if part)
    return " ".join(str(error).split())


def parse_document(text: str, folder: pathlib.Path) -> Document:
    """Read a text; see ``read_document``."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Composer
    try:
        root = yaml.compose(text)
    except YAMLError as error:
        raise ConfigurationError([Fault(yaml_line(error), "", "", f"is not YAML: {yaml_reason(error)}")]) from error
    document = Document({}, {(): 1}, {}, [], folder)
    if root is None:
        document.add((), "is empty")
    else:
        reader = _Reader(document, yaml)
        document.data = reader.read(root, ())
        if not isinstance(document.data, dict):
            raise ConfigurationError([Fault(root.start_mark.line + 1, "", show(document.data), "must be a mapping of keys to values")])
    return document


class _Reader:
    """Turns nodes into values. Aliases work, because the composer shares the nodes; a node that contains itself is a fault."""

    def __init__(self, document: Document, yaml: YAML) -> None:
        self._document = document
        self._constructor = yaml.constructor
        self._open: set[int] = set()
        self._values = 0

    def read(self, node: Node, path: Path) -> Any:
        self._values += 1
        if self._values > MAX_VALUES:
            raise self._too_much(path, f"has more than {MAX_VALUES:,} values")
        if len(self._open) > MAX_DEPTH:
            raise self._too_much(path, f"is nested more than {MAX_DEPTH} deep")
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self._open:
            self._document.add(path, "contains itself")
            return None
        self._open.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
            assert isinstance(node, ScalarNode), "YAML has three kinds of nodes"
            return self._scalar(node, path)
        finally:
            self._open.discard(id(node))

    def _too_much(self, path: Path, reason: str) -> ConfigurationError:
        return ConfigurationError([Fault(self._document.line(path[:1]), key_of(path[:1]), "", f"with what aliases repeat, the document {reason}")])

    def _mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._document.add(path, f"line {key_node.start_mark.line + 1}: a key must be a word")
                continue
            key = str(key_node.value)
            entry = (*path, key)
            if key in result:
                line = key_node.start_mark.line + 1
                self._document.faults.append(
                    Fault(line, key_of(entry), "", f"is a duplicate key; it is already set on line {self._document.line(entry)}")
                )
                continue
            self._document.lines[entry] = key_node.start_mark.line + 1
            result[key] = self.read(value_node, entry)
        return result

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        kind = str(node.tag).removeprefix(_TAG)
        if kind == "null":
            return None
        text = str(node.value)
        self._document.texts[path] = text
        if kind in _KINDS:
            return self._number(node, kind, path)
        if kind not in ("str", "timestamp"):
            self._document.add(path, f"has the tag {node.tag}; tags are not supported")
        return text

    def _number(self, node: ScalarNode, kind: str, path: Path) -> Any:
        try:
            return self._constructor.construct_object(node)
        except (KeyError, ValueError):  # ``!!int abc``, ``0b_``, more digits than Python converts
            self._document.add(path, f"cannot be read as {_KINDS[kind]}")
            return None
