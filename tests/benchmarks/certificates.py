"""Part `certificates`: idle TLS connections with client certificates, before and after the server's own certificate is replaced."""

import time
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace

import figures
import native
from candidates import Candidate
from figures import Figure, beside_peers
from shapes import SHAPES, Load
from stage import FEWER_CONNECTIONS, MOST_CONNECTIONS, Stage
from variants import AUTHORITY, Mutual

from tests.fakes.certificates import Authority

KIB = 1024
LOOK_SECONDS = 0.5
STILL = 4  # readings in a row without a change: connections are closed, and their memory is released
STILL_MIB = 0.2
SETTLE_SECONDS = 30.0
QUICK_CROWD = 1_000
MOST_RATIO = 1.25


@dataclass(frozen=True, slots=True)
class Held:
    """One candidate; resident MiB of all its processes."""

    candidate: str
    connections: int
    before: float  # at start
    held: float  # with all connections open
    swapped: float  # when the certificate was replaced while they were open
    gone: float  # when these were closed, so that no connection uses the old certificate
    held_new: float  # with as many on the new one

    @property
    def kib(self) -> float:
        return (self.held - self.before) * KIB / self.connections

    @property
    def kib_new(self) -> float:
        """Of each connection on the new certificate, with the memory that those before have left."""
        return (self.held_new - self.before) * KIB / self.connections


def run(stage: Stage) -> dict[str, object]:
    """framegate and HAProxy, one after the other."""
    rows = [_measure(stage, name) for name in ("framegate", "haproxy") if name in stage.names]
    lines = [(row.candidate, *(f"{getattr(row, key):.1f}" for key in (*Held.__slots__[2:], "kib", "kib_new"))) for row in rows]
    columns = ("candidate", "at start MiB", "held", "swapped beneath", "closed", "held on the new", "KiB each", "on the new")
    count = f"{rows[0].connections if rows else 0:,} idle TLS connections with client certificates"
    stage.table(count + ("" if stage.quick else FEWER_CONNECTIONS), columns, lines)
    return figures.add({"rows": [asdict(row) for row in rows]}, _judged(rows, count) if "framegate" in stage.names else [])


def _measure(stage: Stage, name: str) -> Held:
    """One candidate, in a folder of its own. The certificates of server and clients are of one authority."""
    folder = stage.place.folder / f"{name}-mutual"
    folder.mkdir(mode=0o755)
    authority = Authority(folder, AUTHORITY)
    client = native.make_certificate(authority, "client")
    place = replace(stage.place, certificate=native.make_certificate(authority, "server"))
    with replace(stage, place=place).all_started(Load(SHAPES[0], downstream_tls=True), [f"{name}-mutual"]) as (candidate,):
        assert isinstance(candidate, Mutual)
        count = QUICK_CROWD if stage.quick else MOST_CONNECTIONS

        def crowd() -> AbstractContextManager[object]:
            return stage.opener.hold(candidate.port, count, tls=True, certificate=client)

        before = _settled(candidate)
        with crowd():
            held = _settled(candidate)
            native.make_certificate(authority, "server")
            candidate.take()
            swapped = _settled(candidate)
        gone = _settled(candidate)
        with crowd():
            return Held(name, count, before, held, swapped, gone, _settled(candidate))


def _settled(candidate: Candidate) -> float:
    """Resident MiB when it no longer changes."""
    end = time.monotonic() + SETTLE_SECONDS
    last, still = candidate.process.total_memory().rss, 0
    while still < STILL and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        now = candidate.process.total_memory().rss
        still = still + 1 if abs(now - last) < STILL_MIB else 0
        last = now
    return last


def _judged(rows: list[Held], count: str) -> list[Figure]:
    found = []
    for key, words in (("kib", "KiB each"), ("kib_new", "KiB each, after a swap")):
        values = {row.candidate: float(getattr(row, key)) for row in rows}
        peers = beside_peers(values)
        met = all(values["framegate"] <= MOST_RATIO * value for value in peers.values())
        found.append(Figure(f"{count}: {words}", f"≤ {MOST_RATIO} × HAProxy", values["framegate"], "KiB", peers, met))
    return found
