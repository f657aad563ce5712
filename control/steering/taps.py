"""The tap's rules, changed while traffic flows: all of them go to every processor at once, in the two phases of every change.

With each change, rules whose time was over before go; that of the rule that is changed is its own affair.
"""

import asyncio
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from framegate.control.errors import AlreadyExistsError, EtagError, FailedPreconditionError, InvalidArgumentError, NotFoundError, Violation
from framegate.control.events import Event, Gap
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.meters import Meters
from framegate.control.status import TAP_RULE, TapRuleStatus, TapStop
from framegate.control.steering.pool import counted
from framegate.control.steering.tap_losses import TapLosses
from framegate.control.steering.transactions import Transaction, Transactions
from framegate.proxy.config.model import ProxyConfig, TapRule, rules_to_wire
from framegate.proxy.server.messages import Change

__all__ = ["MAX_RULES", "STOPPED_EVENT", "Rules", "Taps", "etag_of", "has_expired"]

MAX_RULES: Final = 256
"""Each is asked for each direction of each new connection, and of all that are open when the rules change."""
STOPPED_EVENT: Final = "tap_rule_off"
"""The row in which a processor says that a rule has turned itself off."""
Rules = tuple[TapRule, ...]


def etag_of(rule: TapRule) -> str:
    """Stands for a rule as it is; its place among the others is no part of it."""
    text = json.dumps(dataclasses.asdict(rule), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def has_expired(rule: TapRule, now_ns: int) -> bool:
    """Whether a rule's time is over. ``now_ns`` is of the wall clock."""
    return 0 < rule.expires_ns <= now_ns


class Taps:
    """Shows and changes the rules.

    Args:
        tapped: is told by which rules frames may be recorded: before a change is made, those before and after it; once it is in force, the new ones.
        losses: what the tap lost; None without a tap.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        transactions: Transactions,
        meters: Meters,
        tapped: Callable[[Rules], None],
        losses: TapLosses | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._transactions = transactions
        self._meters = meters
        self._tapped = tapped
        self._losses = losses
        self._decided = 0
        self._stops: dict[str, dict[int, tuple[int, TapStop]]] = {}  # by rule and slot, with the generation of the processor that said so

    @property
    def _config(self) -> ProxyConfig:
        return self._supervisor.desired.config

    def note(self, item: Event | Gap) -> None:
        """Keep what an event of ``STOPPED_EVENT`` says: a rule has turned itself off in a processor."""
        assert isinstance(item, Event), f"the queue holds one for each rule in each processor, and {item.dropped} were dropped"
        row = item.row
        stop = TapStop(slot=row["slot"], cause=row["cause"], percent=row["percent"], limit=row["limit"], since_ns=item.time_ns)
        self._stops.setdefault(row["rule"], {})[stop.slot] = row["generation"], stop

    def troubles(self) -> list[str]:
        """What keeps the tap from recording all frames, or is about to, a sentence each; none without a tap."""
        return [] if self._losses is None else self._losses.troubles

    def rules(self) -> list[TapRuleStatus]:
        """Every tap rule, in order; none without a tap."""
        return [] if self._config.tap is None else [self._status(rule) for rule in self._config.tap.rules]

    def _status(self, rule: TapRule) -> TapRuleStatus:
        slots = self._supervisor.slots
        told = sorted(self._stops.get(rule.name, {}).items())
        stops = tuple(stop for number, (generation, stop) in told if number in slots and slots[number].generation == generation)
        return TapRuleStatus(
            rule=rule,
            etag=etag_of(rule),
            expired=has_expired(rule, time.time_ns()),
            stops=stops,
            losing=self._losses is not None and self._losses.losing,
        )

    # --- changes -----------------------------------------------------------------------------------------------------------------

    async def create(self, rule: TapRule, before: str = "", *, validate_only: bool = False) -> TapRuleStatus:
        """Put a new rule before the one that is named, or last. Connections that are open follow at once.

        Args:
            rule: is judged as one of a configuration file is.
            before: the name of a rule; empty: none.
            validate_only: only say whether it could be done, and what would be; nobody is asked.

        Raises:
            AlreadyExistsError: a rule has the name, and its time is not over. InvalidArgumentError: the rule cannot be; the violations' fields are
                those of ``TapRule``, as in ``networks[0]``. NotFoundError: of ``before``. FailedPreconditionError: there is no tap (NO_TAP), or there
                are too many rules (TOO_MANY_TAP_RULES). AbortedError: a processor refused; none has it. UnavailableError: it is decided, but not
                confirmed everywhere.
        """

        def edit(rules: Rules) -> Rules:
            index = _index(rules, rule.name)
            if index is not None and not has_expired(rules[index], time.time_ns()):
                raise AlreadyExistsError(TAP_RULE, rule.name, "tap_rule.name")
            return _placed(_without(rules, rule.name), rule, before)

        return _found(await self._change(rule.name, edit, validate_only=validate_only), rule.name)

    async def update(
        self, name: str, changes: Mapping[str, Any], before: str | None = None, etag: str = "", *, validate_only: bool = False
    ) -> TapRuleStatus:
        """Change fields of a rule, or move it. What had turned itself off is on again.

        Args:
            name: of the rule; it keeps it.
            changes: new values by the name of ``TapRule``'s field.
            before: as of ``create``; None: it stays where it is.
            etag: the change is for the rule as it was when it had this one; empty: for whatever it is.

        Raises:
            EtagError: it is another. NotFoundError: no rule has the name. Others as ``create``.
        """

        def edit(rules: Rules) -> Rules:
            rule = dataclasses.replace(_known(rules, name, etag), **changes)
            if before is None or before == name:
                return tuple(rule if item.name == name else item for item in rules)
            return _placed(_without(rules, name), rule, before)

        return _found(await self._change(name, edit, validate_only=validate_only), name)

    async def delete(self, name: str, etag: str = "", *, validate_only: bool = False) -> None:
        """Take a rule away. Arguments and errors as ``update``."""

        def edit(rules: Rules) -> Rules:
            _known(rules, name, etag)
            return _without(rules, name)

        await self._change(name, edit, validate_only=validate_only)

    async def _change(self, name: str, edit: Callable[[Rules], Rules], *, validate_only: bool) -> list[TapRuleStatus]:
        """Make the change that ``edit`` makes of the rules in force when its turn has come; the rules then."""
        judge = await asyncio.to_thread(_load_judge)

        def edited() -> Rules:
            rules = self._edited(name, edit)
            faults = [fault for rule in rules if rule.name == name for fault in judge(rule, _speakers(self._config))]
            if faults:
                raise InvalidArgumentError([Violation(field, reason) for field, reason in faults])
            return rules

        if validate_only:
            return [self._status(rule) for rule in edited()]
        return await self._transactions.run(f"{TAP_RULE} {name}", lambda transaction: self._make(name, edited, transaction))

    def _edited(self, name: str, edit: Callable[[Rules], Rules]) -> Rules:
        tap = self._config.tap
        if tap is None:
            raise FailedPreconditionError("there is no tap: the configuration needs a section `tap` with a directory", reason="NO_TAP")
        now_ns = time.time_ns()
        rules = tuple(rule for rule in edit(tap.rules) if rule.name == name or not has_expired(rule, now_ns))
        if len(rules) > max(MAX_RULES, len(tap.rules)):
            raise FailedPreconditionError(f"there are {MAX_RULES} tap rules already", reason="TOO_MANY_TAP_RULES", limit=str(MAX_RULES))
        return rules

    async def _make(self, name: str, edited: Callable[[], Rules], transaction: Transaction) -> list[TapRuleStatus]:
        with counted(self._meters):
            after: Rules = ()
            number = 0

            def check() -> None:
                nonlocal after
                after = edited()

            def commit(desired: DesiredState) -> None:
                nonlocal number
                number = self._decided = self._decided + 1
                assert desired.config.tap is not None, "it was looked at when the change began"
                self._tapped((*desired.config.tap.rules, *after))
                desired.config = dataclasses.replace(desired.config, tap=dataclasses.replace(desired.config.tap, rules=after))
                self._stops.pop(name, None)

            await self._supervisor.change(lambda slot: Change(tap_rules=rules_to_wire(after), tap_rule=name), commit, check, transaction.decide)
            self._stops.pop(name, None)  # it may have turned itself off between the phases
            if number == self._decided:  # otherwise the next one is decided, and says so when nobody has these rules any more
                self._tapped(after)
            return [self._status(rule) for rule in after]


def _load_judge() -> Callable[[TapRule, Mapping[str, bool]], list[tuple[str, str]]]:
    """What reads configurations, 2 MiB: only who changes rules pays for it."""
    from framegate.control.configuration.tap_rules import tap_rule_faults

    return tap_rule_faults


def _speakers(config: ProxyConfig) -> dict[str, bool]:
    return {listener.name: listener.protocol == "kafka" for listener in config.listeners}


def _index(rules: Rules, name: str) -> int | None:
    return next((index for index, rule in enumerate(rules) if rule.name == name), None)


def _known(rules: Rules, name: str, etag: str) -> TapRule:
    index = _index(rules, name)
    if index is None:
        raise NotFoundError(TAP_RULE, name)
    if etag and etag != etag_of(rules[index]):
        raise EtagError(TAP_RULE, name)
    return rules[index]


def _without(rules: Rules, name: str) -> Rules:
    return tuple(rule for rule in rules if rule.name != name)


def _placed(rules: Rules, rule: TapRule, before: str) -> Rules:
    """The rules with one more: before that of a name, or last."""
    index = _index(rules, before) if before else len(rules)
    if index is None:
        raise NotFoundError(TAP_RULE, before)
    return (*rules[:index], rule, *rules[index:])


def _found(statuses: list[TapRuleStatus], name: str) -> TapRuleStatus:
    return next(status for status in statuses if status.rule.name == name)
