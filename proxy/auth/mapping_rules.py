r"""Kafka's ``ssl.principal.mapping.rules``: from a name in a certificate to a principal.

The text is a list with commas, the first rule that matches wins::

    DEFAULT                             the name as it is
    RULE:pattern/replacement/           the pattern must match the whole name; $1 to $9… are its groups, $0 all of it
    RULE:pattern/replacement/L or U     the same, in lower or upper case

``\`` escapes a slash within pattern or replacement; commas need no escape. Empty entries are ignored; without any entry no name matches. As in Kafka,
a group that the pattern does not have is literal text, and ``$12`` is group 1 and a 2 if there is no group 12.

Unlike in Kafka, a rule is expanded once, for the whole name. (Kafka replaces every match: ``.*`` matches the name and then the empty text after it,
and so gives its text twice.) And a faulty replacement is refused when the rules are read, not when a client connects.
"""

import re
import warnings
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["DEFAULT", "MappingRules", "RuleError", "compile_pattern"]

DEFAULT: Final = "DEFAULT"
_RULE: Final = "RULE:"
_SPACE: Final = " \t\r\n\f\v"
_NAMED: Final = re.compile(r"\(\?<(?=[A-Za-z])")  # Java's named group
_Case = Literal["", "L", "U"]


class RuleError(ValueError):
    """The rules cannot be read. ``position``: of the fault, counted from 0."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule; without a pattern it is DEFAULT."""

    pattern: re.Pattern[str] | None
    parts: tuple[str | int, ...]  # of the replacement: text, and numbers of groups
    case: _Case

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        text = "".join(part if isinstance(part, str) else match[part] or "" for part in self.parts)
        return {"": text, "L": text.lower(), "U": text.upper()}[self.case]


class MappingRules:
    """The rules of one listener. Immutable."""

    def __init__(self, text: str = DEFAULT) -> None:
        """Read the rules; raises RuleError if they are malformed."""
        self.text: Final = text
        self._rules: Final = _read(text)

    def apply(self, name: str) -> str | None:
        """The principal, or None when no rule matches."""
        for rule in self._rules:
            found = rule.apply(name)
            if found is not None:
                return found
        return None

    def __len__(self) -> int:
        return len(self._rules)


def _read(text: str) -> list[_Rule]:
    rules: list[_Rule] = []
    position = 0
    while True:
        position = _skip(text, position, _SPACE + ",")
        if position == len(text):
            return rules
        start = position
        if text.startswith(DEFAULT, start):
            position += len(DEFAULT)
            rules.append(_Rule(None, (), ""))
        elif text.startswith(_RULE, start):
            pattern, position = _until_slash(text, start + len(_RULE), start)
            replacement, position = _until_slash(text, position, start)
            case: _Case = ""
            if text.startswith(("L", "U"), position):
                case = "L" if text[position] == "L" else "U"
                position += 1
            rules.append(_rule(pattern, replacement, case, start))
        else:
            raise RuleError(f"neither {DEFAULT} nor {_RULE}pattern/replacement/", start)
        position = _skip(text, position, _SPACE)
        if not text.startswith(",", position) and position < len(text):
            raise RuleError(f"{text[position : position + 20]!r} where a comma or the end should be", position)


def _skip(text: str, position: int, characters: str) -> int:
    while position < len(text) and text[position] in characters:
        position += 1
    return position


def _until_slash(text: str, position: int, start: int) -> tuple[str, int]:
    """The text before the next slash that is not escaped, and the position after it."""
    begin = position
    while position < len(text):
        if text[position] == "/":
            return text[begin:position], position + 1
        position += 2 if text[position] == "\\" else 1
    raise RuleError(f"{_RULE}pattern/replacement/ lacks a slash", start)


def compile_pattern(pattern: str, position: int = 0) -> re.Pattern[str]:
    r"""Compile a pattern, which may name its groups as Java does. As in Java, ``\d``, ``\w``, ``\s`` and ``(?i)`` match ASCII characters only.

    Raises:
        RuleError: it is malformed, or means something else in Java (classes within classes); ``position`` is that of the pattern.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # warnings about future set operations, which Java has
            return re.compile(_NAMED.sub("(?P<", pattern), re.ASCII)
    except (re.error, ValueError, OverflowError, RecursionError, Warning) as error:
        raise RuleError(f"the pattern {pattern!r} is none: {error}", position) from None


def _rule(pattern: str, replacement: str, case: _Case, start: int) -> _Rule:
    compiled = compile_pattern(pattern, start)
    return _Rule(compiled, _parts(replacement, compiled, start), case)


def _parts(replacement: str, pattern: re.Pattern[str], start: int) -> tuple[str | int, ...]:
    r"""The parts of a replacement: ``\x`` is x, ``$n`` a group that exists, ``${name}`` a named one."""
    parts: list[str | int] = []
    literal = ""
    position = 0
    while position < len(replacement):
        character = replacement[position]
        position += 1
        if character == "\\":
            literal += replacement[position]  # it exists: otherwise the next slash would not have ended the replacement
            position += 1
        elif character == "$":
            group, position = _group(replacement, position, pattern, start)
            if isinstance(group, str):
                literal += group
                continue
            parts += [literal, group]
            literal = ""
        else:
            literal += character
    return (*parts, literal)


def _group(replacement: str, position: int, pattern: re.Pattern[str], start: int) -> tuple[str | int, int]:
    """The group after a dollar sign, or its literal text, and the position after it."""
    if replacement.startswith("{", position):
        name, brace, _ = replacement[position + 1 :].partition("}")
        if not brace or name not in pattern.groupindex:
            raise RuleError(f"the pattern has no group of the name {name!r}", start)
        return pattern.groupindex[name], position + len(name) + 2
    end = position
    while end < len(replacement) and replacement[end] in "0123456789":
        end += 1
    if end == position:
        raise RuleError("a $ in the replacement needs a number, or a \\ before it", start)
    used = position + 1
    if int(replacement[position]) > pattern.groups:
        return "$" + replacement[position:used], used
    while used < end and int(replacement[position : used + 1]) <= pattern.groups:
        used += 1
    return int(replacement[position:used]), used
