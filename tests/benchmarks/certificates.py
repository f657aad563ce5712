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

SETTLE_SECONDS = 1.5
KIB = 1024
SWAPS = 20
"""One after the other, each with connections that were opened before it: a context that stays would show twenty times."""
SHORT_CROWD = 100
QUICK_CROWD = 1_000
MOST_RATIO = 1.25
MOST_KEPT = 1.0
"""MiB that may be more when the connections of an old certificate are gone than when others like them went without a swap."""


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
        gone_many: when they are closed, and `SWAPS` more swaps have come and gone, each with connections open.
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
    gone_many: float

    @property
    def kib(self) -> float:
        """Of each connection, the first that there are."""
        return (self.held - self.before) * KIB / self.connections

    @property
    def kib_new(self) -> float:
        """Of each connection on the new certificate, and of what those before them left behind."""
        return (self.held_new - self.before) * KIB / self.connections

    @property
    def kept(self) -> float:
        """What was not given back of an old certificate."""
        return self.gone_swapped - self.gone


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
        for _ in range(SWAPS):
            with _crowd(stage, candidate, SHORT_CROWD, client):
                swap(candidate)
        return Held(name, count, before, held, gone, held_again, swapped, gone_swapped, held_new, _settled(candidate))


def _crowd(stage: Stage, candidate: Candidate, count: int, client: native.Certificate) -> AbstractContextManager[object]:
    return stage.opener.hold(candidate.port, count, tls=True, certificate=client)


def _settled(candidate: Candidate) -> float:
    time.sleep(SETTLE_SECONDS)
    return candidate.process.total_memory().rss


def _show(stage: Stage, rows: list[Held]) -> None:
    sizes = ("before", "held", "gone", "held_again", "swapped", "gone_swapped", "held_new", "gone_many")
    each = ("kib", "kib_new")
    lines = [(row.candidate, *(f"{getattr(row, key):.1f}" for key in (*sizes, *each))) for row in rows]
    first = ("candidate", "at start MiB", "held", "closed, twice")
    columns = (*first, "held again", "swapped beneath", "closed", "held on the new", f"closed, {SWAPS} swaps")
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
    peers = beside_peers({row.candidate: row.kept for row in rows})
    what = "the same, closed after a swap: more than closed without one"
    found.append(Figure(what, f"≤ {MOST_KEPT} MiB", mine.kept, "MiB", peers, mine.kept <= MOST_KEPT))
    growth = mine.gone_many - mine.gone_swapped
    peers = beside_peers({row.candidate: row.gone_many - row.gone_swapped for row in rows})
    found.append(Figure(f"{SWAPS} more swaps, each beneath connections", f"≤ {MOST_KEPT} MiB", growth, "MiB", peers, growth <= MOST_KEPT))
    return found
