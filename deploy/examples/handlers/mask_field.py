"""A request logger: one line of JSON per frame, in which fields of JSON bodies are masked. To be copied and changed.

``mask_field.yaml`` beside this file is a framegate configuration with it; ``listeners[].handler: mask_field:requests`` is all it takes.

A line holds when and where a frame came from, its sequence on its connection, its bytes, and its body when that is JSON: with ``"***"`` in place of
every value of a field that is to be masked, whatever its type. A field is a name, which is masked wherever it occurs (``password``), or a path from
the top (``user.card.number``; ``*`` is any key, and lists are passed through: ``users.name`` masks the name of every user). Names are compared
without regard to case.

Lines go to stderr, which framegate makes rows of its own log of, ``handler_output``, and cuts after 4 KiB, of at most 500
lines a second; ``log`` may send them elsewhere.

Of a body that is not JSON, or longer than ``most`` bytes, only the length is logged: what cannot be read cannot be masked either.

With ``forward="masked"`` the upstream gets the masked body, too; it is written anew then (spacing, order of equal keys). Otherwise each frame goes on
as it came. Answers are not looked at, and pass at the relay's full speed.

The class keeps nothing between frames, so several frames of a connection may be under way.
"""

import json
import logging
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Literal

from framegate.proxy.handler import PASS, Context, Replace, Verdict

MASK = "***"


class MaskField:
    """Logs requests, with fields masked.

    Args:
        fields: names and paths, at least one.
        forward: what the upstream gets: the frame ``unchanged``, or ``masked``.
        most: bytes of the longest body that is looked into.
        log: takes the lines; stderr unless another is given.
    """

    directions = ("request",)

    def __init__(
        self,
        *fields: str,
        forward: Literal["unchanged", "masked"] = "unchanged",
        most: int = 1 << 20,
        log: logging.Logger | None = None,
    ) -> None:
        if not fields or not all(all(field.split(".")) for field in fields):
            raise ValueError(f"fields are names or paths with dots, at least one: {fields!r}")
        if forward not in ("unchanged", "masked"):
            raise ValueError(f"forward is unchanged or masked, not {forward!r}")
        lowered = [field.lower().split(".") for field in fields]
        self.names = frozenset(parts[0] for parts in lowered if len(parts) == 1)
        self.paths = tuple(tuple(parts) for parts in lowered if len(parts) > 1)
        self.forward = forward
        self.most = most
        self.log = log or _stderr()

    def handle(self, frame: bytes, context: Context) -> Verdict:
        """Logs a request, and lets it pass."""
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "listener": context.listener,
            "connection": context.connection,
            "peer": context.peer,
            "principal": context.principal,
            "direction": context.direction,
            "sequence": context.sequence,
            "bytes": len(frame),
        }
        known, body = self._read(frame)
        if known:
            body = line["body"] = self._masked(body, self.paths)
        self.log.info(json.dumps(line))
        if known and self.forward == "masked":
            return Replace(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass"))
        return PASS

    def _read(self, frame: bytes) -> tuple[bool, Any]:
        """Whether a body is JSON that can be masked, and what it says."""
        if len(frame) > self.most:
            return False, None
        try:
            body = json.loads(frame)
            return isinstance(body, (dict, list)), body
        except (ValueError, RecursionError):  # no JSON, no text, or deeper than anything that is meant
            return False, None

    def _masked(self, value: Any, paths: Iterable[tuple[str, ...]]) -> Any:
        """A copy with the fields masked; ``paths`` are what is left of them here."""
        if isinstance(value, list):
            paths = tuple(paths)
            return [self._masked(item, paths) for item in value]
        if not isinstance(value, dict):
            return value
        masked = {}
        for key, item in value.items():
            name = key.lower()
            below = [path[1:] for path in paths if path[0] in (name, "*")]
            masked[key] = MASK if name in self.names or () in below else self._masked(item, below)
        return masked


def _stderr() -> logging.Logger:
    """A logger of its own: what others log in this process stays theirs."""
    log = logging.Logger("mask_field", logging.INFO)
    log.addHandler(logging.StreamHandler(sys.stderr))
    return log


requests = MaskField("password", "token", "user.card.number")
