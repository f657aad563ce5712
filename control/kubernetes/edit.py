"""Additions to a mapping of a manifest, and their removal, as edits of the text.

``graft`` adds, and returns what must be known to undo it; ``prune`` undoes it. Existing text is neither moved nor rewritten. Edits never overlap; of
two at one place the inner one comes first.
"""

import io
import json
import re
import textwrap
from typing import Any, Final, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString, SingleQuotedScalarString

from framegate.control.kubernetes.manifest import Fault, ManifestError, Node, node_at

ANY: Final = object()  # for ``prune``: the value does not matter
PREPENDED: Final = frozenset({"initContainers"})
"""Additions to these lists come first: framegate starts before the other init containers, so that they may use it."""
_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Plain scalars that are not text in YAML 1.1, which kubectl reads."""
Path = tuple[str, ...]


class Edit(NamedTuple):
    """Replaces the text from ``start`` to ``end``. ``depth``: of two edits at one place the deeper one comes first."""

    start: int
    end: int
    text: str
    depth: int


class Layout(NamedTuple):
    """The indentation of a manifest: ``step`` of a mapping in a mapping, ``offset`` of a list's dashes below its key; and its ``newline``."""

    step: int
    offset: int
    newline: str


def newline_of(text: str) -> str:
    """The end of the first line of a text."""
    end = text.find("\n")
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def layout_of(text: str, parent: Node, key: str) -> Layout:
    """The indentation of a mapping and of the list below one of its keys; in flow style kubectl's."""
    child = parent.get(key)
    offset = 0
    if not parent.flow and child is not None and child.kind == "sequence" and not child.flow:
        offset = child.column - parent.column
    first = next((value for _, value in parent.entries if value.kind == "mapping" and not value.flow), None)
    step = first.column - parent.column if first is not None and not parent.flow else 2
    return Layout(step if 1 <= step <= 8 else 2, offset if 0 <= offset <= 8 else 0, newline_of(text))


def apply(text: str, edits: list[Edit]) -> str:
    """The text with all edits made."""
    parts: list[str] = []
    place = 0
    for edit in sorted(edits, key=lambda item: (item.start, -item.depth)):
        assert edit.start >= place, "edits do not overlap"
        parts += [text[place : edit.start], edit.text]
        place = edit.end
    return "".join((*parts, text[place:]))


# ---- additions ----


def graft(
    text: str, shared: frozenset[str], node: Node, wanted: dict[str, Any], layout: Layout, path: Path = (), replaced: frozenset[Path] = frozenset()
) -> tuple[list[Edit], dict[str, str | None]]:
    """Edits that add to a mapping: keys that it lacks, items to its lists. And the former text that ``prune`` needs, by path (with dots): of an entry
    that was empty or replaced its text; None where there was no key.

    ``text``, ``shared``, ``node``, ``path``: the manifest, the anchors that its aliases use, the mapping and its path. ``wanted``: mappings, lists
    and values by key; a value must not exist yet.

    Raises ManifestError: what is to be added to is shared by an anchor, comes from ``<<``, or is of another kind.
    """
    edits: list[Edit] = []
    was: dict[str, str | None] = {}
    if path:
        _not_shared(shared, node, path[-1])
    for key, value in wanted.items():
        place = (*path, key)
        name, current = node.key(key), node.get(key)
        if name is None or current is None:
            _not_merged(node, key)
            was |= {".".join(place): None} if isinstance(value, dict | list) else {}
            edits.append(_new_entry(text, node, key, value, layout))
        elif current.empty or place in replaced:
            _not_shared(shared, current, key)
            was[".".join(place)] = text[name.start : current.end]
            edits.append(Edit(name.start, current.end, _entry(text, node, key, value, layout).lstrip(), node.column))
        else:
            _of_kind(current, value, key)
            _not_shared(shared, current, key)
            if isinstance(value, dict):
                inner, before = graft(text, shared, current, value, layout, place, replaced)
                edits += inner
                was |= before
            else:
                edits.append(_new_items(text, name, current, value, layout))
    return edits, was


def _of_kind(node: Node, value: object, key: str) -> None:
    kind = "mapping" if isinstance(value, dict) else "sequence" if isinstance(value, list) else "scalar"
    if node.kind == "alias":
        raise ManifestError(
            [Fault(node.line, f"{key} is the alias *{node.text}: what is added to it would be added where it comes from; write it out")]
        )
    if node.kind != kind or kind == "scalar":
        raise ManifestError([Fault(node.line, f"{key} is a {node.kind}, and should be {'absent' if kind == 'scalar' else f'a {kind}'}")])


def _not_shared(shared: frozenset[str], node: Node, key: str) -> None:
    if node.anchor in shared:
        raise ManifestError(
            [Fault(node.line, f"{key} is used again as *{node.anchor}: what is added to it would be added there, too; write it out there")]
        )


def _not_merged(node: Node, key: str) -> None:
    merged = node.key("<<")
    if merged is not None:
        raise ManifestError([Fault(merged.line, f"<< may bring a {key}, which what is added would replace; write it out")])


def _new_entry(text: str, node: Node, key: str, value: object, layout: Layout) -> Edit:
    entry = _entry(text, node, key, value, layout)
    if not node.flow:
        place = _line_end(text, node.end)
        return Edit(place, place, layout.newline + entry, node.column)
    last = node.entries[-1][1].end
    return Edit(last, last, _flow_comma(text, node) + entry.lstrip(), node.column)


def _entry(text: str, node: Node, key: str, value: object, layout: Layout) -> str:
    if node.flow:
        return _flow_text(text, node, value, key)
    return block_text({key: value}, layout, node.column)


def _new_items(text: str, name: Node, node: Node, values: list[Any], layout: Layout) -> Edit:
    first = name.text in PREPENDED
    if not node.flow:
        place = _line_end(text, name.end if first else node.end)
        return Edit(place, place, layout.newline + block_text(values, layout, node.column), node.column + (0 if first else 1))
    comma = _flow_comma(text, node)
    written = comma.join(_flow_text(text, node, value) for value in values)
    place = node.items[0].start if first else node.items[-1].end
    return Edit(place, place, written + comma if first else comma + written, node.column)


def block_text(value: Any, layout: Layout, column: int) -> str:
    """A mapping or list in block style, from a column on; without the last line's end."""
    yaml = YAML()
    yaml.width = 1_000_000
    yaml.indent(mapping=layout.step, sequence=layout.offset + 2, offset=layout.offset)
    stream = io.StringIO()
    yaml.dump(_styled(value), stream)
    written = stream.getvalue().removesuffix("\n")
    if isinstance(value, list):
        written = textwrap.dedent(written)
    if column:
        written = textwrap.indent(written, " " * column)
    return written.replace("\n", layout.newline)


def _styled(value: Any) -> Any:
    """Text in quotes if a version of YAML takes it for something else."""
    if isinstance(value, dict):
        return {_styled(key): _styled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_styled(item) for item in value]
    if not isinstance(value, str) or (_PLAIN.fullmatch(value) and value.lower() not in _WORDS):
        return value
    if "\n" in value:
        return LiteralScalarString(value)
    return SingleQuotedScalarString(value) if '"' in value and "'" not in value else DoubleQuotedScalarString(value)


def _flow_text(text: str, node: Node, value: object, key: str | None = None) -> str:
    """As JSON, which any flow collection of YAML takes, on several lines if its neighbours are."""
    shown = value if key is None else {key: value}
    inner = node.items + [name for name, _ in node.entries]
    if "\n" not in text[node.start : node.end]:
        written = json.dumps(shown, ensure_ascii=False)
        return written if key is None else written[1:-1]
    step = max(1, inner[0].column - _indent_of(text, node.start)) if inner else 2
    column = inner[0].column if inner else node.column + step
    written = json.dumps(shown, ensure_ascii=False, indent=step)
    if key is not None:
        written = textwrap.dedent(written[2:-2])
    return textwrap.indent(written, " " * column).lstrip().replace("\n", newline_of(text))


def _flow_comma(text: str, node: Node) -> str:
    inner = node.items or [name for name, _ in node.entries]
    return ", " if "\n" not in text[node.start : node.end] else f",{newline_of(text)}{' ' * inner[0].column}"


def _indent_of(text: str, place: int) -> int:
    line = text[text.rfind("\n", 0, place) + 1 :]
    return len(line) - len(line.lstrip(" "))


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    if end < 0:
        return len(text)
    return end - 1 if end > place and text[end - 1] == "\r" else end


def grafted(value: Any, wanted: Any, key: str = "") -> Any:
    """The plain data that a text must have after ``graft``."""
    if isinstance(wanted, dict):
        old = value if isinstance(value, dict) else {}
        return {**old, **{name: grafted(old.get(name), item, name) for name, item in wanted.items()}}
    if isinstance(wanted, list):
        old_items = value if isinstance(value, list) else []
        return [*wanted, *old_items] if key in PREPENDED else [*old_items, *wanted]
    return wanted


# ---- removals ----


def prune(text: str, node: Node, cuts: dict[str, Any], was: dict[str, str | None], path: Path = ()) -> tuple[list[Edit], bool]:
    """Edits that undo ``graft``, and whether nothing is left of the mapping. ``cuts``: by key: a mapping of such; of a list the names of items; a
    value, which is removed unless it has changed; ``ANY``. ``was``: as ``graft`` returned it.
    """
    edits: list[Edit] = []
    dropped: set[int] = set()
    added = any(".".join(path[:length]) in was for length in range(1, len(path) + 1))  # inject made the mapping
    for index, (name, current) in enumerate(node.entries):
        cut = cuts.get(name.text)
        if cut is None:
            continue
        place = ".".join((*path, name.text))
        inner, gone = _cut_value(text, current, cut, was, (*path, name.text))
        if not gone:
            edits += inner
            continue
        # without an entry in the record: a mapping or list existed before, a value did not
        before = was.get(place, "" if isinstance(cut, dict | set) and not added else None)
        if before is None:
            dropped.add(index)
        else:
            nothing = f"{text[name.start : name.end]}: {'[]' if isinstance(cut, set) else '{}'}"
            edits.append(Edit(name.start, current.end, before or nothing, node.column))
    if dropped and len(dropped) == len(node.entries):
        return [], True
    spans = [(name.start, name.start, value.end) for name, value in node.entries]
    return edits + _without(text, node, spans, dropped), False


def _cut_value(text: str, node: Node, cut: object, was: dict[str, str | None], path: Path) -> tuple[list[Edit], bool]:
    if isinstance(cut, dict):
        return prune(text, node, cut, was, path)
    if isinstance(cut, set):
        named = [item.get("name") or node_at(item, "metadata", "name") for item in node.items]
        dropped = {index for index, name in enumerate(named) if name is not None and name.text in cut}
        if dropped and len(dropped) == len(node.items):
            return [], True
        spans = [(_dash(text, node, item), item.start, item.end) for item in node.items]
        return _without(text, node, spans, dropped), False
    return [], cut is ANY or node.value == cut


def _dash(text: str, node: Node, item: Node) -> int:
    return item.start if node.flow else text.rindex("-", 0, item.start)


def _without(text: str, node: Node, spans: list[tuple[int, int, int]], dropped: set[int]) -> list[Edit]:
    edits: list[Edit] = []
    for index in sorted(dropped):
        begin, start, end = spans[index]
        if not node.flow and text[text.rfind("\n", 0, begin) + 1 : begin].strip(" ") == "":
            edits.append(Edit(_line_before(text, begin), _line_end(text, end), "", node.column))
        elif any(kept not in dropped for kept in range(index)):
            edits.append(Edit(spans[index - 1][2], end, "", node.column))
        else:
            edits.append(Edit(start, spans[index + 1][1], "", node.column))
    return edits


def _line_before(text: str, place: int) -> int:
    end = text.rfind("\n", 0, place)
    return 0 if end < 0 else end - 1 if text[end - 1 : end] == "\r" else end
