"""Part `certificates`: idle TLS connections whose clients showed certificates, before and after the server's own certificate is replaced."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace

import figures
import native
from candidates import Candidate
from figures import Figure, beside_peers
from mutual import AUTHORITY, Mutual
from shapes import SHAPES, Load
from stage import MOST_CONNECTIONS, Stage

__all__ = ["Held", "run"]

KIB = 1024
LOOK_SECONDS = 0.5
STILL = 4
"""Looks in a row at which nothing has changed: connections are closed, and what they had is given back."""
STILL_MIB = 0.2
SETTLE_SECONDS = 30.0
SWAPS = 50
QUICK_SWAPS = 5
SHORT_CROWD = 20
QUICK_CROWD = 1_000
MOST_RATIO = 1.25
MOST_LEFT = 0.05
"""Of what connections take: what those on an old certificate may leave more than others before them did. The allocator's holes differ by as much."""
MOST_EACH_SWAP = 12.0
"""KiB: half of what a context takes that stays."""


@dataclass(frozen=True, slots=True)
class Held:
    """One candidate; resident MiB of all its processes.

    Attributes:
        before: at start.
        held: with all connections open, the first that there are.
        gone: when these were closed, and as many once more were opened and closed: what the allocator keeps, it has now.
        held_again: with as many again.
        swapped: when the certificate was replaced beneath them.
        gone_swapped: when these were closed, too: the old certificate has nobody left.
        held_new: with as many on the new one.
        gone_new: when these were closed.
        cycled: when a few connections were opened and closed `swaps` times more.
        gone_many: after as many times again, each with a swap beneath them.
    """

    candidate: str
    connections: int
    before: float
    held: float
    gone: float
    held_again: float
    swapped: float
    gone_swapped: float
    held_new: float
    gone_new: float
    cycled: float
    gone_many: float
    swaps: int

    @property
    def kib(self) -> float:
        """Of each connection, the first that there are."""
        return (self.held - self.before) * KIB / self.connections

    @property
    def kib_new(self) -> float:
        """Of each connection on the new certificate, and of what those before them left behind."""
        return (self.held_new - self.before) * KIB / self.connections

    @property
    def left(self) -> float:
        """What connections on an old certificate left more than others before them, as a share of what connections take."""
        return (self.gone_swapped - self.gone) / (self.held_again - self.gone_swapped) if self.held_again > self.gone_swapped else 0.0

    @property
    def kib_each_swap(self) -> float:
        """What each of many swaps left: more than the connections beneath it leave (events are kept, up to a bound)."""
        return (self.gone_many - self.cycled - max(self.cycled - self.gone_new, 0.0)) * KIB / self.swaps


def run(stage: Stage) -> dict[str, object]:
    """framegate and HAProxy, one after the other."""
    rows = [_measure(stage, name) for name in ("framegate", "haproxy") if name in stage.names]
    _show(stage, rows)
    return figures.add({"rows": [asdict(row) for row in rows]}, _judged(rows))


def _measure(stage: Stage, name: str) -> Held:
    """One candidate, in a folder of its own, whose certificate is an authority's, as its clients' are."""
    folder = stage.place.folder / f"{name}-mutual"
    folder.mkdir(mode=0o755)
    authority = native.make_certificate(folder, name=AUTHORITY)
    client = native.make_certificate(folder, name="client", issuer=authority)
    place = replace(stage.place, certificate=native.make_certificate(folder, name="server", issuer=authority))

    def swap(candidate: Mutual) -> None:
        native.make_certificate(folder, name="server", issuer=authority)
        candidate.take()

    with replace(stage, place=place).all_started(Load(SHAPES[0], downstream_tls=True), [f"{name}-mutual"]) as (candidate,):
        assert isinstance(candidate, Mutual)
        count = QUICK_CROWD if stage.quick else MOST_CONNECTIONS
        before = _settled(candidate)
        with _crowd(stage, candidate, count, client):
            held = _settled(candidate)
        with _crowd(stage, candidate, count, client):
            pass
        gone = _settled(candidate)
        with _crowd(stage, candidate, count, client):
            held_again = _settled(candidate)
            swap(candidate)
            swapped = _settled(candidate)
        gone_swapped = _settled(candidate)
        with _crowd(stage, candidate, count, client):
            held_new = _settled(candidate)
        gone_new = _settled(candidate)
        swaps = QUICK_SWAPS if stage.quick else SWAPS
        for _ in range(swaps):
            with _crowd(stage, candidate, SHORT_CROWD, client):
                pass
        cycled = _settled(candidate)
        for _ in range(swaps):
            with _crowd(stage, candidate, SHORT_CROWD, client):
                swap(candidate)
        return Held(name, count, before, held, gone, held_again, swapped, gone_swapped, held_new, gone_new, cycled, _settled(candidate), swaps)


def _crowd(stage: Stage, candidate: Candidate, count: int, client: native.Certificate) -> AbstractContextManager[object]:
    return stage.opener.hold(candidate.port, count, tls=True, certificate=client)


def _settled(candidate: Candidate) -> float:
    """Resident MiB once that has stopped moving."""
    end = time.monotonic() + SETTLE_SECONDS
    last, still = candidate.process.total_memory().rss, 0
    while still < STILL and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        now = candidate.process.total_memory().rss
        still = still + 1 if abs(now - last) < STILL_MIB else 0
        last = now
    return last


def _show(stage: Stage, rows: list[Held]) -> None:
    sizes = ("before", "held", "gone", "held_again", "swapped", "gone_swapped", "held_new", "gone_new", "cycled", "gone_many")
    each = ("kib", "kib_new")
    lines = [(row.candidate, *(f"{getattr(row, key):.1f}" for key in (*sizes, *each))) for row in rows]
    first = ("candidate", "at start MiB", "held", "closed, twice")
    swaps = rows[0].swaps if rows else 0
    columns = (*first, "held again", "swapped beneath", "closed", "held on the new", "closed", f"{swaps} crowds", f"{swaps} swaps")
    words = f"{rows[0].connections if rows else 0:,} idle TLS connections with client certificates"
    if MOST_CONNECTIONS < 10_000 and not stage.quick:
        words += ": as many as the limit of descriptors allows here"
    stage.table(words, (*columns, "KiB each", "on the new"), lines)


def _judged(rows: list[Held]) -> list[Figure]:
    mine = next((row for row in rows if row.candidate == "framegate"), None)
    if mine is None:
        return []
    found = []
    for key, words in (("kib", "KiB each"), ("kib_new", "KiB each, after a swap")):
        values = {row.candidate: float(getattr(row, key)) for row in rows}
        peers = beside_peers(values)
        met = all(values["framegate"] <= MOST_RATIO * value for value in peers.values())
        what = f"{mine.connections:,} idle TLS connections with client certificates: {words}"
        found.append(Figure(what, f"≤ {MOST_RATIO} × HAProxy", values["framegate"], "KiB", peers, met))
    peers = beside_peers({row.candidate: 100 * row.left for row in rows})
    what = "the same, closed after a swap: left more than by those before, of what they took"
    found.append(Figure(what, f"≤ {MOST_LEFT:.0%}", 100 * mine.left, "%", peers, mine.left <= MOST_LEFT))
    peers = beside_peers({row.candidate: row.kib_each_swap for row in rows})
    met = mine.kib_each_swap <= MOST_EACH_SWAP
    found.append(
        Figure(f"{mine.swaps} more swaps beneath connections: left by each", f"≤ {MOST_EACH_SWAP:g} KiB", mine.kib_each_swap, "KiB", peers, met)
    )
    return found
