"""The tap's rules, and the frames that its log loses.

A change of the rules sends all of them to every processor, in two phases (``control.fleet.two_phases``). It also removes rules that have expired,
except the rule that is changed.
"""

import asyncio
import dataclasses
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from framegate.control.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError, check_fields
from framegate.control.events import Event, Gap
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.status import TAP_RULE, TapRuleStatus, TapStop
from framegate.control.steering.transactions import Changed, Part, Transactions, check_etag, replaced
from framegate.proxy.cells import CellReader
from framegate.proxy.config.model import ProxyConfig, TapConfig, TapRule
from framegate.proxy.server.messages import Change

MAX_RULES: Final = 256  # each is evaluated for each direction of each new connection, and of all open ones when the rules change
STOPPED_EVENT: Final = "tap_rule_off"  # the row in which a processor reports that a rule has turned itself off
REASONS: Final = ("queue_full", "disk_full", "disk_error")
EACH_S: Final = 60.0
OVER_S: Final = 10.0
Rules = tuple[TapRule, ...]


def has_expired(rule: TapRule, now_ns: int) -> bool:
    """Whether a rule has expired at ``now_ns`` of the wall clock."""
    return 0 < rule.expires_ns <= now_ns


class TapLosses:
    """Writes a row when the tap begins to lose frames, each minute while it does, and when nothing was lost for ``OVER_S``.

    It runs on the event loop, which a disk that hangs does not stop. Only frames that the log could not write are counted (``REASONS``), not those
    that rules leave out, nor those of connections that were closed.

    Args:
        cells: returns the counters, by slot, including removed slots.
        log: gets the rows ``tap_losing`` and ``tap_losing_ended``.
        low: returns why the tap's disk is nearly full, as a sentence; empty while it is not.
        clock: monotonic, in s.
    """

    def __init__(
        self,
        cells: Callable[[], Sequence[tuple[int, CellReader]]],
        log: RowLog,
        directory: str,
        low: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cells = cells
        self._log = log
        self._directory = directory
        self._low = low
        self._clock = clock
        self._seen = dict.fromkeys(REASONS, 0)
        self._began: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._began_at = self._told_at = self._lost_at = 0.0
        self.losing = False  # frames are being lost

    @property
    def troubles(self) -> list[str]:
        """Sentences for operators about losses and the disk."""
        low = self._low()
        found = [low] if low else []
        if self.losing:
            lost = _since(self._seen, self._began)
            why = ", ".join(f"{count:,} {reason}" for reason, count in lost.items())
            found.append(f"the tap loses frames, for {self._clock() - self._began_at:.0f} s: {why}; gaps in its log say how many")
        return found

    def look(self) -> None:
        """Compare the counters with those of the last call; about once a second."""
        now = self._clock()
        before = self._seen
        readers = [reader for _, reader in self._cells()]
        self._seen = {reason: sum(reader.cell("framegate.tap.dropped", reason) for reader in readers) for reason in REASONS}
        if _since(self._seen, before):
            self._lost_at = now
            if not self.losing:
                self.losing = True
                self._began, self._began_at, self._told = before, now, before
                self._report(now)
        if self.losing and now - self._lost_at >= OVER_S:
            self._report_end()
        elif self.losing and now - self._told_at >= EACH_S:
            self._report(now)

    def close(self) -> None:
        """Write the last row; at the end of framegate."""
        self.look()
        if self.losing:
            self._report_end()

    def _report_end(self) -> None:
        self.losing = False
        frames, lasted = _since(self._seen, self._began), round(self._lost_at - self._began_at, 1)
        self._log.write("tap_losing_ended", level="warning", directory=self._directory, frames=frames, seconds=lasted)

    def _report(self, now: float) -> None:
        frames, self._told, self._told_at = _since(self._seen, self._told), self._seen, now
        self._log.write("tap_losing", level="error", directory=self._directory, frames=frames, seconds=round(now - self._began_at, 1))


def _since(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """The frames lost in between, by reason."""
    return {reason: now[reason] - before[reason] for reason in REASONS if now[reason] > before[reason]}


class Taps:
    """Shows and changes the rules. ``tapped``: called with the rules that may record frames: when a change is made, with those before and after it,
    and when it is in force, with the new ones. ``losses``: None without a tap.
    """

    def __init__(self, supervisor: Supervisor, transactions: Transactions, tapped: Callable[[Rules], None], losses: TapLosses | None = None) -> None:
        self._supervisor = supervisor
        self._transactions = transactions
        self._tapped = tapped
        self._losses = losses
        self._decided = 0
        self._stops: dict[str, dict[int, tuple[int, TapStop]]] = {}  # by rule and slot, with the generation of the processor

    @property
    def _config(self) -> ProxyConfig:
        return self._supervisor.desired.config

    def note(self, item: Event | Gap) -> None:
        """Take an event of ``STOPPED_EVENT``: a rule has turned itself off in a processor."""
        assert isinstance(item, Event), f"the queue holds one for each rule in each processor, and {item.dropped} were dropped"
        row = item.row
        stop = TapStop(slot=row["slot"], cause=row["cause"], percent=row["percent"], limit=row["limit"], since_ns=item.time_ns)
        self._stops.setdefault(row["rule"], {})[stop.slot] = row["generation"], stop

    def troubles(self) -> list[str]:
        """Sentences about what keeps the tap from recording all frames, or soon will; none without a tap."""
        return [] if self._losses is None else self._losses.troubles

    def rules(self) -> list[TapRuleStatus]:
        return [] if self._config.tap is None else [self.status(rule) for rule in self._config.tap.rules]

    def status(self, rule: TapRule) -> TapRuleStatus:
        slots = self._supervisor.slots
        told = sorted(self._stops.get(rule.name, {}).items())
        stops = tuple(stop for number, (generation, stop) in told if number in slots and slots[number].generation == generation)
        return TapRuleStatus(
            rule=rule, expired=has_expired(rule, time.time_ns()), stops=stops, losing=self._losses is not None and self._losses.losing
        )

    # --- changes -----------------------------------------------------------------------------------------------------------------

    async def create(self, rule: TapRule, before: str = "", *, validate_only: bool = False) -> Changed[Rules]:
        """Put a new rule before the one that is named, or last (empty). Connections that are open follow at once. Returns all rules.

        Raises AlreadyExistsError: a rule has the name, and has not expired. InvalidArgumentError: the rule is not valid; the violations' fields are
        those of ``TapRule``, as in ``networks[0]``. NotFoundError: of ``before``. FailedPreconditionError: there is no tap (NO_TAP), or there are too
        many rules (TOO_MANY_TAP_RULES). Others as ``Transactions.update``.
        """

        def edit(rules: Rules) -> Rules:
            index = _index(rules, rule.name)
            if index is not None and not has_expired(rules[index], time.time_ns()):
                raise AlreadyExistsError(TAP_RULE, rule.name, "tap_rule.name")
            return _placed(_without(rules, rule.name), rule, before)

        return await self._change(rule.name, edit, validate_only=validate_only)

    async def update(
        self, name: str, changes: Mapping[str, Any], before: str | None = None, etag: str = "", *, validate_only: bool = False
    ) -> Changed[Rules]:
        """Change fields of a rule (``changes``: new values by the name of ``TapRule``'s field), or move it (``before``: as of ``create``; None: it is
        not moved). A rule that has turned itself off is on again. Raises NotFoundError: no rule has the name; others as ``create``.
        """

        def edit(rules: Rules) -> Rules:
            rule = replaced(_known(rules, name, etag), changes)
            if before is None or before == name:
                return tuple(rule if item.name == name else item for item in rules)
            return _placed(_without(rules, name), rule, before)

        return await self._change(name, edit, validate_only=validate_only)

    async def delete(self, name: str, etag: str = "", *, validate_only: bool = False) -> Changed[Rules]:
        """Take a rule away. Arguments and errors as ``update``."""

        def edit(rules: Rules) -> Rules:
            _known(rules, name, etag)
            return _without(rules, name)

        return await self._change(name, edit, validate_only=validate_only)

    def replaced(self, before: ProxyConfig, after: ProxyConfig) -> None:
        """All rules were replaced, with the configuration; ``made`` is called when that is in force."""
        self._decided += 1
        old, new = (() if config.tap is None else config.tap.rules for config in (before, after))
        if old != new:
            self._tapped((*old, *new))
            self._stops.clear()

    def made(self) -> None:
        self._tapped(() if self._config.tap is None else self._config.tap.rules)

    async def _change(self, name: str, edit: Callable[[Rules], Rules], *, validate_only: bool) -> Changed[Rules]:
        validation = await asyncio.to_thread(importlib.import_module, "framegate.control.configuration.tap_rules")  # 2 MiB, at the first change
        number = 0

        def edited(before: Rules) -> Rules:
            now_ns = time.time_ns()
            rules = tuple(rule for rule in edit(before) if rule.name == name or not has_expired(rule, now_ns))
            if len(rules) > max(MAX_RULES, len(before)):
                text = f"there are {MAX_RULES} tap rules already"
                raise FailedPreconditionError(text, reason="TOO_MANY_TAP_RULES", limit=str(MAX_RULES))
            speaks_kafka = {listener.name: listener.protocol == "kafka" for listener in self._config.listeners}
            check_fields([fault for rule in rules if rule.name == name for fault in validation.tap_rule_faults(rule, speaks_kafka)])
            return rules

        def decided(changed: Changed[Rules]) -> None:
            nonlocal number
            number = self._decided = self._decided + 1
            self._tapped((*changed.before, *changed.after))
            self._stops.pop(name, None)

        def done(changed: Changed[Rules]) -> None:
            self._stops.pop(name, None)  # it may have turned itself off between the phases
            if number == self._decided:  # otherwise a later change is decided, and will report its rules
                self._tapped(changed.after)

        part = Part(
            TAP_RULE,
            name,
            lambda config: _tap_of(config).rules,
            lambda config, rules: dataclasses.replace(config, tap=dataclasses.replace(_tap_of(config), rules=rules)),
            Change(tap_rule=name),
        )
        return await self._transactions.update(self._supervisor, part, edited, validate_only=validate_only, decided=decided, done=done)


def _tap_of(config: ProxyConfig) -> TapConfig:
    if config.tap is None:
        raise FailedPreconditionError("there is no tap: the configuration needs a section `tap` with a directory", reason="NO_TAP")
    return config.tap


def _index(rules: Rules, name: str) -> int | None:
    return next((index for index, rule in enumerate(rules) if rule.name == name), None)


def _known(rules: Rules, name: str, etag: str) -> TapRule:
    index = _index(rules, name)
    if index is None:
        raise NotFoundError(TAP_RULE, name)
    check_etag(TAP_RULE, name, etag, rules[index])
    return rules[index]


def _without(rules: Rules, name: str) -> Rules:
    return tuple(rule for rule in rules if rule.name != name)


def _placed(rules: Rules, rule: TapRule, before: str) -> Rules:
    """The rules with one more, before the named one or last."""
    index = _index(rules, before) if before else len(rules)
    if index is None:
        raise NotFoundError(TAP_RULE, before)
    return (*rules[:index], rule, *rules[index:])
