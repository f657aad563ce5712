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
from typing import Final

DEFAULT: Final = "DEFAULT"
_RULE: Final = "RULE:"
_ENTRY: Final = re.compile(rf"{DEFAULT}|{_RULE}((?:[^\\/]|\\.)*)/((?:[^\\/]|\\.)*)/([LU]?)", re.DOTALL)
_SPACE: Final = re.compile(r"[ \t\r\n\f\v]*")
_SEPARATORS: Final = re.compile(r"[ \t\r\n\f\v,]*")
_TOKEN: Final = re.compile(r"([^\\$]+)|\\(.)|\$\{([^}]*)(\}?)|\$([0-9]+)|\$", re.DOTALL)  # text, escaped character, named group, numbered group
_NAMED: Final = re.compile(r"\(\?<(?=[A-Za-z])")  # Java's named group


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
    case: str  # L, U or empty

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
    position = _end_of(_SEPARATORS, text, 0)
    while position < len(text):
        entry = _ENTRY.match(text, position)
        if entry is None:
            fault = (
                f"{_RULE}pattern/replacement/ lacks a slash"
                if text.startswith(_RULE, position)
                else f"neither {DEFAULT} nor {_RULE}pattern/replacement/"
            )
            raise RuleError(fault, position)
        pattern, replacement, case = entry.groups()
        if pattern is None:
            rules.append(_Rule(None, (), ""))
        else:
            compiled = compile_pattern(pattern, position)
            rules.append(_Rule(compiled, _parts(replacement, compiled, position), case))
        position = _end_of(_SPACE, text, entry.end())
        if position < len(text) and text[position] != ",":
            raise RuleError(f"{text[position : position + 20]!r} where a comma or the end should be", position)
        position = _end_of(_SEPARATORS, text, position)
    return rules


def _end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


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


def _parts(replacement: str, pattern: re.Pattern[str], start: int) -> tuple[str | int, ...]:
    r"""The parts of a replacement: ``\x`` is x, ``$n`` a group that exists, ``${name}`` a named one."""
    parts: list[str | int] = []
    for token in _TOKEN.finditer(replacement):
        text, escaped, name, brace, digits = token.groups()
        if name is not None:
            if not brace or name not in pattern.groupindex:
                raise RuleError(f"the pattern has no group of the name {name!r}", start)
            parts.append(pattern.groupindex[name])
        elif digits is not None:
            parts += _numbered(digits, pattern.groups)
        elif text is None and escaped is None:
            raise RuleError("a $ in the replacement needs a number, or a \\ before it", start)
        else:
            parts.append(text or escaped)
    return tuple(parts)


def _numbered(digits: str, count: int) -> list[str | int]:
    """The group with the longest number that the pattern has, and the rest as text; without such a group, all is text."""
    used = 0
    while used < len(digits) and int(digits[: used + 1]) <= count:
        used += 1
    return [int(digits[:used]), digits[used:]] if used else ["$" + digits]
