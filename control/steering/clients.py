"""The clients that use most, and those whose logins fail: one ranking for the API, ``framegate top``, metrics and problems.

Every ten seconds each processor is asked what its clients have used (``proxy.relay.client_use``). Lists are of the last minute; that of memory is of
now. Nothing grows with the number of clients. A processor's counts are too low by at most 0.2 % of its total, and it reports the ``LIMIT`` clients
with most. So at most ``1 / (LIMIT + 1)`` of the total, 3.1 %, is missing from what a client used, and no client is shown with more than it used.

Of failed logins a list has what is common to them: one user from one address, one user from many addresses, many users from one address, or many of
both. Each failed login counts in one entry. Logins that could not be checked, because the queue was full or what checks them is away, have one entry
for each listener, and only in the metric: no client is to blame.
"""

import asyncio
import functools
import heapq
import operator
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from framegate.control.accept.admission import Refusals
from framegate.control.errors import UnavailableError
from framegate.control.fleet.processor import REQUEST_MS
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.meters import Meters
from framegate.control.status import ClientMeasure, ClientRank
from framegate.proxy.relay.frequent import MEASURES, Key
from framegate.proxy.server.messages import ClientsReply
from framegate.proxy.server.protocol import clients_request

K = TypeVar("K")
TOP: Final = 10
LIMIT: Final = 32
STEP_S: Final = 10.0
LOOK_LIMIT_S: Final = 20.0
SAMPLES: Final = 6
MANY: Final = "<many>"
"""In place of a user or an address; a user who is called so is shown as ``\\<many>``."""
METERS: Final[Mapping[ClientMeasure, str]] = {
    "bytes": "client.io",
    "frames": "client.frame.rate",
    "held": "client.memory.usage",
    "refusals": "client.refusals",
    "logins": "client.login.failures",
}  # the metric of each measure
_LEAST_USED: Final[Mapping[ClientMeasure, float]] = {"bytes": 100_000.0, "frames": 100.0}
"""Per second: a client that uses less is not said to use most, whatever its share."""
_MANY_CLIENTS: Final = 10  # So many are at a listener where one may harm the others. Connections do not count: an application has a pool of them.
_LEAST: Final = 0.1  # a user, an address, or the rest has an entry of its own if it has more than this share of a listener's failed logins


class _Amounts:
    """Amounts by measure and client, and of a listener's clients together."""

    def __init__(self) -> None:
        self.clients: dict[str, dict[Key, int]] = {measure: {} for measure in MEASURES}
        self.listeners: dict[str, dict[str, int]] = {measure: {} for measure in MEASURES}

    def add(self, other: "_Amounts", sign: int = 1) -> None:
        """Add, or take away; what becomes 0 is left out."""
        for measure in MEASURES:
            _add(self.clients[measure], other.clients[measure], sign)
            _add(self.listeners[measure], other.listeners[measure], sign)


def _add(amounts: dict[K, int], other: Mapping[K, int], sign: int = 1) -> None:
    for key, amount in other.items():
        after = amounts.get(key, 0) + sign * amount
        if after:
            amounts[key] = after
        else:
            amounts.pop(key, None)


class Clients:
    """Asks the processors, and ranks. ``meters``: get a gauge for each ranking, with a value for each client in it and for no other. ``now_s``: of a
    monotonic clock.
    """

    def __init__(self, supervisor: Supervisor, refusals: Refusals, meters: Meters, now_s: Callable[[], float] = time.monotonic) -> None:
        self._supervisor = supervisor
        self._refusals = refusals
        self._now_s = now_s
        self._samples: deque[tuple[float, _Amounts]] = deque([(now_s(), _Amounts())])  # until when, and what was used; of the first only when
        self._minute = _Amounts()
        # the first ``TOP`` clients by each measure, the largest first: per second, or bytes held. It is replaced as a whole. Any thread.
        self.rankings: Mapping[ClientMeasure, tuple[ClientRank, ...]] = dict.fromkeys(METERS, ())
        for measure, name in METERS.items():
            meters.gauges(name, functools.partial(self._values, measure))
        meters.gauges("client.share", lambda: self._shares)
        self._unchecked: dict[tuple[str, ...], float] = {}
        self._shares: dict[tuple[str, ...], float] = {}

    def _values(self, measure: ClientMeasure) -> dict[tuple[str, ...], float]:
        reason = ("credentials",) if measure == "logins" else ()
        values: dict[tuple[str, ...], float] = dict(self._unchecked if reason else ())
        return values | {(rank.listener, rank.principal, rank.client_id, rank.address, *reason): rank.value for rank in self.rankings[measure]}

    def _large_shares(self) -> dict[tuple[str, ...], float]:
        counts = {measure: Counter(key[0] for key in self._minute.clients[measure]) for measure in _LEAST_USED}
        return {
            (rank.listener, rank.principal, rank.client_id, rank.address, measure): rank.share
            for measure, least in _LEAST_USED.items()
            for rank in self.rankings[measure]
            if rank.share > 0.5 and rank.value > least and counts[measure][rank.listener] >= _MANY_CLIENTS
        }

    async def look(self) -> None:
        """Take a sample and rank. A processor that does not answer in time is left out."""
        sample, minute = _Amounts(), self._minute
        sample.clients["refusals"], sample.listeners["refusals"] = self._refusals.take()
        for processor in self._supervisor.running:
            try:
                answer = await processor.request(clients_request(LIMIT), REQUEST_MS)
            except UnavailableError:
                continue
            sample.add(_read(answer))
        minute.add(sample)
        self._samples.append((self._now_s(), sample))
        if len(self._samples) > SAMPLES + 1:
            self._samples.popleft()
            minute.add(self._samples[0][1], -1)
        rankings: dict[ClientMeasure, tuple[ClientRank, ...]] = {}
        for measure in METERS:
            await asyncio.sleep(0)  # each ranking is short; all together they would delay others
            rankings[measure] = self._ranked(measure)
        self.rankings = rankings
        self._shares = self._large_shares()
        unchecked, seconds = self._minute.listeners["unavailable"], self._seconds
        self._unchecked = {(listener, MANY, "", MANY, "unavailable"): amount / seconds for listener, amount in unchecked.items()}

    @property
    def _seconds(self) -> float:
        """How long the samples have taken."""
        return max(self._samples[-1][0] - self._samples[0][0], 1.0)

    def _ranked(self, measure: ClientMeasure) -> tuple[ClientRank, ...]:
        amounts, seconds = (self._samples[-1][1], 1.0) if measure == "held" else (self._minute, self._seconds)
        found = _common_logins(amounts) if measure == "logins" else amounts.clients[measure]
        return tuple(
            ClientRank(*key, value=amount / seconds, share=amount / amounts.listeners[measure][key[0]])
            for key, amount in heapq.nlargest(TOP, found.items(), key=operator.itemgetter(1))
        )


def _read(answer: ClientsReply) -> _Amounts:
    amounts = _Amounts()
    for row in answer["rows"]:
        listener, principal, client_id, address = row["client"]
        found, key = amounts.clients[row["measure"]], (listener, principal, client_id, address)
        found[key] = found.get(key, 0) + row["amount"]  # long client ids that begin alike are the same here
    for row in answer["totals"]:
        amounts.listeners[row["measure"]][row["client"][0]] = row["amount"]
    return amounts


def _common_logins(amounts: _Amounts) -> dict[Key, int]:
    """What the failed logins of each listener have in common; each counts once."""
    kinds = ("logins", "login_users", "login_addresses")
    found: dict[Key, int] = {}
    for listener, total in amounts.listeners["logins"].items():
        tried, by_user, by_address = ({key: amount for key, amount in amounts.clients[kind].items() if key[0] == listener} for kind in kinds)
        found.update(_common(listener, tried, by_user, by_address, total))
    return found


def _common(listener: str, tried: dict[Key, int], by_user: dict[Key, int], by_address: dict[Key, int], total: int) -> dict[Key, int]:
    """The same for one listener. An address, or a user, is an entry unless one user, or address, has half of its failures. ``tried``: failed logins
    by user, client id and address; it is changed, as ``by_user`` is. ``by_user``, ``by_address``: by that alone; the other texts are empty.
    """
    least = total * _LEAST
    found: dict[Key, int] = {}
    for place, counts in ((3, by_address), (1, by_user)):
        for text, count in [(key[place], count) for key, count in counts.items() if count > least]:
            own = {key: amount for key, amount in tried.items() if key[place] == text}
            if max(own.values(), default=0) < count / 2:
                found[(listener, MANY, "", _named(text)) if place == 3 else (listener, _named(text), "", MANY)] = count
                for key, amount in own.items():
                    del tried[key]
                    user = (listener, key[1], "", "")
                    by_user[user] = by_user.get(user, 0) - amount
    found.update({(listener, _named(name), client, address): count for (_, name, client, address), count in tried.items() if count > least})
    others = total - sum(found.values())
    return found | {(listener, MANY, "", MANY): others} if others > least else found


def _named(text: str) -> str:
    return f"\\{text}" if text == MANY else text
