"""A fault injector: what a service does when the network, or what is behind it, misbehaves. To be copied and changed.

``inject_faults.yaml`` beside this file is a framegate configuration with it; ``listeners[].handler: inject_faults:faults`` is all it takes. The
listener has an upstream; frames that no fault meets go on as they came.

The faults are in a file, JSON or YAML: ``$FRAMEGATE_FAULTS`` (a variable that framegate passes on when ``FRAMEGATE_HANDLER_ENV`` names it), or
``faults.yaml`` in the folder of this file. It is looked at once a second while frames come, and read anew when it is another (time of change, inode
or size): faults are switched on and off while framegate runs. Without a file there are no faults. A file that cannot be used changes nothing: the
rules before stay in force, and a line on stderr, which is a row ``handler_output`` of framegate's log, says what is wrong with it.

::

    rules:
      - name: slow-answers        # as in the lines on stderr, and part of what decides about a share
        fault: delay              # delay, drop, truncate, corrupt, close
        seconds: 0.25             # of delay
        share: 0.1                # of the frames that match; 1: all (default)
        seed: 7                   # which ones (default 0)
        ttl: 600                  # seconds from the file's last change on; default: as long as it stands
        match:                    # all that is named must fit; default: every frame
          listeners: [kafka]
          directions: [response]
          principals: ["User:app-*"]              # with * and ?
          networks: ["10.0.0.0/8"]                # of the client
          size: {min: 100, max: 1000000}          # bytes of the frame, both included
          prefix: "0012"                          # of the frame, in hex
          regex: "order-[0-9]+"                   # anywhere in the frame's first 64 KiB, which are taken for UTF-8 byte by byte
      - {name: cut, fault: truncate, keep: 10}    # the first bytes that are left (default 0)
      - {name: flip, fault: corrupt, bytes: 3}    # so many bytes, at least one, get another value (default 1)

The rules are looked at in their order: delays add up, the first other fault that meets a frame is what becomes of it. Whether a share meets a frame
is decided by the seed, the rule's name, and the frame's connection, direction and sequence, by nothing else: the same traffic on connections of the
same ids meets the same faults, in every process. The same holds for the bytes that are corrupted.

A dropped request of a protocol in which answers have no numbers leaves its client waiting, which may be the point. A delay holds up the frames behind
it on their connection and direction, no others.
"""

import asyncio
import dataclasses
import fnmatch
import hashlib
import ipaddress
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from framegate.proxy.handler import CLOSE, DROP, PASS, Context, Replace, Verdict

FAULTS = ("delay", "drop", "truncate", "corrupt", "close")
LOOK_SECONDS = 1.0
REGEX_BYTES = 65_536
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class FaultsError(Exception):
    """The file cannot be used."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Match:
    """Which frames a rule is about; what is empty or None fits all."""

    listeners: tuple[str, ...] = ()
    directions: tuple[str, ...] = ()
    principals: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    least: int = 0
    most: int | None = None
    prefix: bytes = b""
    regex: re.Pattern[bytes] | None = None

    def fits(self, frame: bytes, context: Context) -> bool:
        """Whether a frame is one of them. What costs most is looked at last."""
        return (
            (not self.listeners or context.listener in self.listeners)
            and (not self.directions or context.direction in self.directions)
            and len(frame) >= self.least
            and (self.most is None or len(frame) <= self.most)
            and frame.startswith(self.prefix)
            and (not self.principals or any(fnmatch.fnmatchcase(context.principal, pattern) for pattern in self.principals))
            and (not self.networks or _is_within(context.peer, self.networks))
            and (self.regex is None or self.regex.search(frame, 0, REGEX_BYTES) is not None)
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """One fault; see the module."""

    name: str
    fault: str
    seconds: float = 0.0
    keep: int = 0
    count: int = 1
    share: float = 1.0
    seed: int = 0
    ttl: float | None = None
    match: Match = Match()

    def meets(self, frame: bytes, context: Context) -> bool:
        """Whether a frame is one of the rule's, and of its share."""
        if not self.match.fits(frame, context):
            return False
        return self.share >= 1 or int.from_bytes(self.dice(context, 0)[:7], "big") < self.share * (1 << 56)

    def dice(self, context: Context, turn: int) -> bytes:
        """32 bytes that only a frame's place and the rule decide."""
        place = f"{self.seed} {self.name} {context.connection} {context.direction} {context.sequence} {turn}"
        return hashlib.blake2b(place.encode(), digest_size=32).digest()

    def verdict(self, frame: bytes, context: Context) -> Verdict:
        """What becomes of a frame that it meets; of a delay nothing."""
        if self.fault == "drop":
            return DROP
        if self.fault == "close":
            return CLOSE
        return Replace(frame[: self.keep] if self.fault == "truncate" else self._corrupted(frame, context))

    def _corrupted(self, frame: bytes, context: Context) -> bytes:
        """Other values at so many places, each place once; a frame that is shorter is corrupted as a whole."""
        places: set[int] = set()
        turn = 1
        while len(places) < min(self.count, len(frame)):
            places.add(int.from_bytes(self.dice(context, turn)[:8], "big") % len(frame))
            turn += 1
        data = bytearray(frame)
        for place in places:
            data[place] ^= 0xFF
        return bytes(data)


class InjectFaults:
    """Injects the faults of a file.

    Args:
        path: of the file; its name ends with ``.json``, or it is YAML.
        monotonic, wall: seconds; the first decides when the file is looked at, the second is compared with its time of change.
        log: takes a line for each change; stderr unless another is given.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        log: logging.Logger | None = None,
    ) -> None:
        self.path = Path(path)
        self.rules: tuple[Rule, ...] = ()
        self._monotonic = monotonic
        self._wall = wall
        self._log = log or _stderr()
        self._next_look = 0.0
        self._seen: tuple[int, int, int] | None = None
        self._changed = 0.0
        self._wrong = ""

    def start(self) -> None:
        """The faults are there before the first frame."""
        self._look()

    async def handle(self, frame: bytes, context: Context) -> Verdict:
        """Lets a frame meet its faults."""
        if self._monotonic() >= self._next_look:
            self._look()
        if not self.rules:
            return PASS
        age = self._wall() - self._changed
        delay = 0.0
        verdict: Verdict = PASS
        for rule in self.rules:
            if (rule.ttl is not None and age >= rule.ttl) or not rule.meets(frame, context):
                continue
            if rule.fault != "delay":
                verdict = rule.verdict(frame, context)
                break
            delay += rule.seconds
        if delay:
            await asyncio.sleep(delay)
        return verdict

    def _look(self) -> None:
        """Read the file when it is another than the last time."""
        self._next_look = self._monotonic() + LOOK_SECONDS
        try:
            status = self.path.stat()
            seen = (status.st_mtime_ns, status.st_ino, status.st_size)
            if seen == self._seen:
                return
            self._seen = seen
            rules = read_rules(self.path)
        except FileNotFoundError:
            if self.rules or self._seen or self._wrong:
                self._tell(logging.INFO, "faults_off", reason="the file is gone")
            self.rules, self._seen, self._wrong = (), None, ""
        except FaultsError as error:
            self._unusable(str(error))
        except OSError as error:
            self._seen = None  # what keeps it from being read may pass without a change of the file
            self._unusable(str(error))
        else:
            self.rules, self._changed, self._wrong = rules, status.st_mtime, ""
            self._tell(logging.INFO, "faults_changed", in_force=[rule.name for rule in rules])

    def _unusable(self, wrong: str) -> None:
        """The rules before stay; the same is not told twice."""
        if wrong != self._wrong:
            self._tell(logging.WARNING, "faults_unusable", error=wrong, in_force=[rule.name for rule in self.rules])
        self._wrong = wrong

    def _tell(self, level: int, event: str, **fields: object) -> None:
        self._log.log(level, json.dumps({"event": event, "file": str(self.path), **fields}))


# The file.


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a file. Raises FaultsError: the text names each rule that is wrong, and its key."""
    text = path.read_bytes()
    try:
        content = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except (ValueError, RecursionError) as error:
        raise FaultsError(f"it cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or set(content) != {"rules"} or not isinstance(content["rules"], list):
        raise FaultsError("it is to be an object with a list of rules, and nothing else")
    faults: list[str] = []
    rules = [rule for index, item in enumerate(content["rules"]) if (rule := _rule(item, f"rules[{index}]", faults))]
    names = [rule.name for rule in rules]
    faults += [f"the name {name} is there twice" for name in sorted(set(names)) if names.count(name) > 1]
    if faults:
        raise FaultsError("; ".join(faults))
    return tuple(rules)


def _yaml(text: bytes) -> object:
    from ruamel.yaml import YAML  # framegate brings it along
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from error


def _rule(item: object, place: str, faults: list[str]) -> Rule | None:
    """A rule; None, and what is wrong with it in ``faults``."""
    before = len(faults)
    taken = _take(item, place, _RULE, faults)
    if len(faults) > before:
        return None
    if "name" not in taken or "fault" not in taken:
        faults.append(f"{place}: a rule has a name and a fault")
    elif taken["fault"] == "delay" and not taken.get("seconds"):
        faults.append(f"{place}.seconds: a delay has some")
    else:
        match = _take(taken.pop("match", {}), f"{place}.match", _MATCH, faults)
        size = _take(match.pop("size", {}), f"{place}.match.size", _SIZE, faults)
        if len(faults) == before:
            taken["count"] = taken.pop("bytes", 1)
            return Rule(**taken, match=Match(**match, least=size.get("min", 0), most=size.get("max")))
    return None


def _take(item: object, place: str, known: dict[str, Callable[[Any], Any]], faults: list[str]) -> dict[str, Any]:
    """The values of an object, each as its key takes it."""
    if not isinstance(item, dict):
        faults.append(f"{place}: is to be an object")
        return {}
    taken: dict[str, Any] = {}
    for key, value in item.items():
        if key not in known:
            faults.append(f"{place}.{key}: there is no such key")
            continue
        try:
            taken[key] = known[key](value)
        except (ValueError, TypeError) as error:
            faults.append(f"{place}.{key}: {error}")
    return taken


def _number(least: float, most: float, *, whole: bool = False) -> Callable[[Any], Any]:
    def take(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not least <= value <= most:
            raise ValueError(f"is to be {'a whole number' if whole else 'a number'} from {least:g} to {most:g}, not {value!r:.50}")
        return value

    return take


def _word(*words: str) -> Callable[[Any], str]:
    def take(value: Any) -> str:
        if not isinstance(value, str) or not value or (words and value not in words):
            raise ValueError(f"is to be {' or '.join(words) or 'a text'}, not {value!r:.50}")
        return value

    return take


def _list(take: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def take_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError("is to be a list with something in it")
        return tuple(map(take, value))

    return take_all


def _object(value: Any) -> Any:
    return value


def _regex(value: Any) -> re.Pattern[bytes]:
    try:
        return re.compile(_word()(value).encode())
    except re.error as error:
        raise ValueError(f"{value!r:.50} is no regular expression: {error}") from error


_SIZE: dict[str, Callable[[Any], Any]] = {"min": _number(0, 2**31, whole=True), "max": _number(0, 2**31, whole=True)}
_MATCH: dict[str, Callable[[Any], Any]] = {
    "listeners": _list(_word()),
    "directions": _list(_word("request", "response")),
    "principals": _list(_word()),
    "networks": _list(ipaddress.ip_network),
    "size": _object,
    "prefix": lambda value: bytes.fromhex(_word()(value)),
    "regex": _regex,
}
_RULE: dict[str, Callable[[Any], Any]] = {
    "name": _word(),
    "fault": _word(*FAULTS),
    "seconds": _number(0, 3600),
    "keep": _number(0, 2**31, whole=True),
    "bytes": _number(1, 1_000_000, whole=True),
    "share": _number(0, 1),
    "seed": _number(-(2**63), 2**63, whole=True),
    "ttl": _number(0, 10**9),
    "match": _object,
}


def _is_within(peer: str, networks: tuple[Network, ...]) -> bool:
    """Whether a peer, ``host:port`` or ``[v6]:port``, is of one of the networks; one of a Unix socket is of none."""
    try:
        address = ipaddress.ip_address(peer.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return any(address in network for network in networks)


def _stderr() -> logging.Logger:
    """A logger of its own: what others log in this process stays theirs."""
    log = logging.Logger("inject_faults", logging.INFO)
    log.addHandler(logging.StreamHandler(sys.stderr))
    return log


faults = InjectFaults(os.environ.get("FRAMEGATE_FAULTS") or Path(__file__).with_name("faults.yaml"))
