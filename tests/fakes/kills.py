"""A whole framegate that is killed again and again over one tap directory, in every way, at random moments: each kind of kill is a function."""

import contextlib
import dataclasses
import functools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from framegate.proxy.network.tls_context import client_context
from framegate.proxy.tap.completeness import verify
from framegate.proxy.tap.ledger import read_ledger
from framegate.proxy.tap.log_reader import LogError
from tests.fakes.framegate import Framegate, alive, child_pids, processor_pids
from tests.fakes.judge import KAFKA, Account, Key, judge
from tests.fakes.small_disk import fill
from tests.fakes.tap_read import read_frames
from tests.fakes.tls import TlsWorld
from tests.fakes.traffic import Traffic

Row = dict[str, Any]
WAIT_S: Final = 40  # for anything that does happen; a busy machine may take so long

SETTINGS: Final[dict[str, list[Row]]] = {
    "all": [{"name": "all"}],
    "cut": [{"name": "hash", "listeners": ["a"], "capture": "hash"}, {"name": "head", "directions": ["request"], "max_frame_bytes": 32}],
    "shares": [{"name": "lengths", "listeners": ["a"], "capture": "lengths", "sample_connections": 0.6}, {"name": "some", "sample_connections": 0.5}],
    "small": [{"name": "all"}],
    "mute": [{"name": "mute", "listeners": ["a"], "on_full": "mute"}, {"name": "all"}],
}  # Rules, by name


@dataclasses.dataclass
class Kill:
    """One kill: of which kind, what it hit, and, once it is judged, what the log says of those streams."""

    kind: str
    streams: list[str]
    accounts: dict[Key, Account] = dataclasses.field(default_factory=dict)


def captured(rules: list[Row]) -> Callable[[str, str], str]:
    """What the first rule that matches keeps, by listener and direction, in the words of ``judge``."""

    def tapped(listener: str, direction: str) -> str:
        for rule in rules:
            if listener in rule.get("listeners", [listener]) and direction in rule.get("directions", [direction]):
                capture: str = rule.get("capture", "full")
                return str(rule["max_frame_bytes"]) if rule.get("max_frame_bytes") else capture
        return ""

    return tapped


class Campaign:
    """Traffic, a proxy, and what kills it.

    Args:
        folder: of the configuration.
        directory: of the tap.
        seed: of all that is random.
        rules: of the tap, of ``SETTINGS``.
        disk: the tap has a small disk of its own, which may be filled.
        tls: certificates of the listeners; None: plaintext.
        kafka: a port for clients of a Kafka broker, and the broker's address; None: there are none.
    """

    def __init__(
        self,
        folder: Path,
        directory: Path,
        seed: int,
        rules: str = "all",
        *,
        disk: bool = False,
        tls: TlsWorld | None = None,
        kafka: tuple[int, str] | None = None,
        **tap: Any,
    ) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.traffic = Traffic(seed)
        self.kills: list[Kill] = []
        self.disk = disk
        self.retention = "budget" in tap  # it deletes segments that would be compared
        self.most = 5000  # frames of a client in a flood
        self._tls = tls
        self._kafka = kafka
        self._folder = folder
        self._rules = SETTINGS[rules]
        self._tap = {
            "directory": str(directory),
            "flush": self.rng.choice(["1ms", "20ms", "100ms"]),
            "flush_size": self.rng.choice(["8KiB", "32KiB", "64KiB"]),
            "segment_size": self.rng.choice(["64KiB", "1MiB", "128MiB"]),
            "rules": self._rules,
            **tap,
        }
        self.proxy = self.begin()

    # --- the proxy ---------------------------------------------------------------------------------------------------------------

    def begin(self) -> Framegate:
        sides: Row = {"upstream": "echo", "max_receive_size": "1MiB"}
        if self._tls is not None:
            sides["tls"] = dict(zip(("certificate", "key"), self._tls.server, strict=True))
        config: Row = {
            "processors": 2,
            "memory_pool": {"size": "8MiB"},
            "listeners": [{"name": name, "address": "127.0.0.1:0", **sides} for name in ("a", "b")],
            "upstreams": [{"name": "echo", "endpoints": [self.traffic.echo.address]}],
            "tap": self._tap,
        }
        if self._kafka is not None:
            port, address = self._kafka
            config["listeners"].append({**sides, "name": KAFKA, "address": f"127.0.0.1:{port}", "protocol": "kafka", "upstream": "broker"})
            config["upstreams"].append({"name": "broker", "endpoints": [address]})
        proxy = Framegate(self._folder, config, wait=False)
        proxy.serving = proxy.wait_row(lambda row: row["event"] == "serving", WAIT_S)
        self.proxy = proxy
        return proxy

    def clients(self, count: int = 4) -> None:
        context = None if self._tls is None else client_context(ca=self._tls.authority)
        self.traffic.connect(self.proxy, [self.rng.choice("ab") for _ in range(count)], self.directory, context)

    def flood(self) -> None:
        """Traffic as fast as it goes, until a random number of answers has come; it goes on."""
        if len(self.traffic.here) < 4:
            self.clients()
        self.traffic.flood(min(self.rng.choice([5, 100, 1000, 3000]), self.most), self.most)

    def until(self, condition: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + wait_s
        while not condition():
            if time.monotonic() > deadline:
                rows = "\n".join(map(str, self.proxy.rows[-30:]))
                raise AssertionError(f"{what}: not in {wait_s} s; the last rows are\n{rows}")
            time.sleep(0.005)

    def streams(self) -> dict[int, str]:
        """What the processors write, by pid."""
        ledger = read_ledger(str(self.directory))
        newest = {int(stream.rsplit(".", 2)[1]): stream for stream, stream_record in ledger.streams.items() if not stream_record.recovery}
        self.until(lambda: len(self.proxy.processors) == 2, "two processors run")
        running = set(self.proxy.processors)
        ready = [row for row in list(self.proxy.rows) if row["event"] == "processor_ready" and row["pid"] in running]
        return {row["pid"]: newest[row["slot"]] for row in ready}

    def settled(self, streams: list[str]) -> None:
        """Wait until what they lack is written down."""

        def done() -> bool:
            stream_records = read_ledger(str(self.directory)).streams
            return all(stream in stream_records and stream_records[stream].settled for stream in streams)

        self.until(done, f"{streams} settled")

    def revived(self) -> None:
        """Wait until both slots serve again, and the ledger knows their streams."""

        def done() -> bool:
            running = set(self.proxy.processors)
            ready = {row["pid"] for row in list(self.proxy.rows) if row["event"] == "processor_ready"}
            live = [
                stream
                for stream, stream_record in read_ledger(str(self.directory)).streams.items()
                if stream_record.end is None and not stream_record.recovery
            ]
            return len(running & ready) == 2 and len(live) == 2

        self.until(done, "two processors are ready")

    def part(self, streams: list[str]) -> None:
        """Traffic ends; clients of these streams go."""
        self.traffic.stop()
        self.traffic.part(set(streams))

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def judge(self, *faults: str) -> dict[Key, Account]:
        """Stop in order, and hold the log against what was seen."""
        if self.proxy.process.poll() is None:
            self.traffic.stop()
            assert self.proxy.stop(WAIT_S) == 0
        self.traffic.part()
        accounts = judge(self.directory, self.traffic, captured(self._rules), faults)
        for kill in self.kills:
            kill.accounts = {key: account for key, account in accounts.items() if key[0] in kill.streams}
        return accounts

    def close(self) -> None:
        self._end([pid for pid in (self.proxy.process.pid, *child_pids(self.proxy.process.pid)) if alive(pid)])
        self.traffic.close()

    @property
    def left(self) -> list[int]:
        return processor_pids(self.proxy.process.pid)

    # --- kills -------------------------------------------------------------------------------------------------------------------

    def kill(self, kind: str) -> None:
        """Do one of ``KINDS``; traffic, if any, has ended, and what can be settled is."""
        KINDS[kind](self)

    def one(self, kind: str) -> None:
        """SIGKILL to one processor, now."""
        pid, stream = self.rng.choice(sorted(self.streams().items()))
        os.kill(pid, signal.SIGKILL)
        self.note(kind, [stream])
        self.recovered([stream])

    def recovered(self, streams: list[str]) -> None:
        """Clients of these streams go; wait until their accounts are settled and both slots serve again."""
        self.part(streams)
        self.settled(streams)
        self.revived()

    def note(self, kind: str, streams: list[str]) -> None:
        self.kills.append(Kill(kind, streams))

    def everything(self, pids: list[int]) -> None:
        """SIGKILL to control and its processors."""
        self._end(pids)
        self.until(lambda: not any(alive(pid) for pid in pids[1:]), "they are gone")

    def _end(self, pids: list[int]) -> None:
        """SIGKILL: they stand still first, so that none outlives another."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # a processor that was killed before is gone by now
                    os.kill(pid, number)
        self.proxy.wait()

    def again(self, streams: list[str]) -> None:
        """After the end of control: clients go, it starts anew, and settles what was left."""
        self.part([client.stream for client in self.traffic.here])
        self.begin()
        self.settled(streams)
        self.revived()


def flood(campaign: Campaign) -> None:
    """A processor, while all send as fast as they can."""
    campaign.flood()
    campaign.one("flood")


def idle(campaign: Campaign) -> None:
    """A processor that has nothing to do, and has written everything that it did not lose to a disk that was full until just now."""
    campaign.clients(2)
    campaign.traffic.exchange(campaign.rng.randrange(1, 300))
    sent = {client.stream for client in campaign.traffic.here}

    def flushed() -> bool:
        rows = [row for row in verify(str(campaign.directory)).rows if row.stream in sent]
        return sum(row.accounted for row in rows) >= sum(
            client.sent
            for client in campaign.traffic.here
            for direction in ("request", "response")
            if captured(campaign._rules)(client.listener, direction)
        )

    campaign.until(functools.partial(has_the_last, campaign) if campaign.retention else flushed, "the log has it")
    time.sleep(0.5)  # an idle loop looks up each 100 ms, and says then that it reserves no more; nobody else can see that
    campaign.one("idle")


def has_the_last(campaign: Campaign) -> bool:
    """Whether the log has the last frame of every client, both ways: what came before retention may have taken."""
    newest: dict[tuple[int, str], int] = {}
    try:
        for item in read_frames(str(campaign.directory)):
            newest[item.connection, item.direction] = item.number
    except LogError:
        return False  # retention is at work: to be looked at again
    return all(newest.get((client.id, direction)) == client.sent - 1 for client in campaign.traffic.here for direction in ("request", "response"))


def group(campaign: Campaign) -> None:
    """Control and its processors together, under flood, as when the kernel takes the whole pod."""
    campaign.flood()
    streams = campaign.streams()
    campaign.everything([campaign.proxy.process.pid, *streams])
    campaign.note("group", list(streams.values()))
    campaign.again(list(streams.values()))


def two(campaign: Campaign) -> None:
    """Both processors within a moment, under flood."""
    campaign.flood()
    streams = campaign.streams()
    for pid, stream in streams.items():
        os.kill(pid, signal.SIGKILL)
        campaign.note("two", [stream])
        time.sleep(campaign.rng.random() / 10)
    campaign.recovered(list(streams.values()))


def newborn(campaign: Campaign) -> None:
    """A processor, and its successor as soon as there is one."""
    campaign.flood()
    pid, stream = campaign.rng.choice(sorted(campaign.streams().items()))
    before = set(campaign.left)
    os.kill(pid, signal.SIGKILL)
    campaign.note("newborn", [stream])
    campaign.until(lambda: bool(set(campaign.left) - before), "a successor starts")
    (successor,) = set(campaign.left) - before
    time.sleep(campaign.rng.random() / 5)
    os.kill(successor, signal.SIGKILL)
    campaign.note("newborn", [])
    campaign.recovered([stream])


def settling(campaign: Campaign) -> None:
    """A processor, and control while it settles that one's account; then the rest."""
    campaign.flood()
    streams = campaign.streams()
    pid = campaign.rng.choice(sorted(streams))
    os.kill(pid, signal.SIGKILL)
    if campaign.rng.random() < 0.5:
        time.sleep(campaign.rng.random() / 50)
    else:
        recovery = streams[pid].rsplit(".", 1)[1]

        def begun() -> bool:
            if any(name.endswith(recovery) and ".recovery." in name for name in os.listdir(campaign.directory)):
                return True
            return read_ledger(str(campaign.directory)).streams[streams[pid]].settled  # there was nothing to say

        campaign.until(begun, "it is settled")
    campaign.note("settling", [streams[pid]])
    campaign.everything([campaign.proxy.process.pid, *campaign.left])
    campaign.note("settling", [stream for other, stream in streams.items() if other != pid])
    campaign.again(list(streams.values()))


def control(campaign: Campaign) -> None:
    """Control alone; processors end by themselves then, in order."""
    campaign.flood()
    streams = campaign.streams()
    campaign.proxy.process.kill()
    campaign.proxy.wait()
    campaign.until(lambda: not any(alive(pid) for pid in streams), "processors end without control")
    campaign.note("control", list(streams.values()))
    campaign.again(list(streams.values()))


def orphans(campaign: Campaign) -> None:
    """Control alone; the processors stand still when the next one comes, which waits for them with their accounts; they go on, and end in order."""
    campaign.flood()
    streams, before = campaign.streams(), campaign.proxy
    before.process.kill()
    before.process.wait()
    for pid in streams:
        os.kill(pid, signal.SIGSTOP)  # not before: the kernel lets those that stand still go on when their group is orphaned
    campaign.note("orphans", list(streams.values()))
    try:
        stand = any(map(alive, streams))  # else all of them were quicker
        proxy = campaign.begin()
        if stand:
            proxy.wait_row(lambda row: row["event"] == "tap_orphans", WAIT_S)
            stream_records = read_ledger(str(campaign.directory)).streams
            assert all(stream_records[stream].end is None for stream in streams.values())
    finally:
        for pid in streams:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    before.wait()
    campaign.until(lambda: not any(alive(pid) for pid in streams), "processors end without control")
    campaign.recovered(list(streams.values()))


def standstill(campaign: Campaign) -> None:
    """A processor that stands still until control kills it."""
    campaign.flood()
    pid, stream = campaign.rng.choice(sorted(campaign.streams().items()))
    os.kill(pid, signal.SIGSTOP)
    campaign.until(lambda: not alive(pid), "it is killed")
    campaign.note("standstill", [stream])
    campaign.recovered([stream])


def in_order(campaign: Campaign) -> None:
    """No kill: an end in order under flood, and a start."""
    campaign.flood()
    streams = list(campaign.streams().values())
    assert campaign.proxy.stop(WAIT_S) == 0
    campaign.note("in order", streams)
    campaign.again(streams)


def filled(campaign: Campaign) -> None:
    """Fill the disk under flood, until frames are lost for that."""
    campaign.flood()
    ballast = campaign.directory / "ballast"

    def lost() -> float:
        return campaign.proxy.metric("framegate_tap_dropped_total", framegate_reason="disk_full")

    def dropped() -> bool:
        if all(client.quiet for client in campaign.traffic.here):
            campaign.traffic.flood(1, campaign.most)
        return lost() > before

    before = lost()
    fill(ballast)
    campaign.until(dropped, "the disk is full")
    fill(ballast)


def emptied(campaign: Campaign) -> None:
    (campaign.directory / "ballast").unlink()


def full_for_a_while(campaign: Campaign) -> None:
    """A processor, after the disk was full for a while."""
    filled(campaign)
    emptied(campaign)
    campaign.traffic.stop()
    campaign.traffic.quiet()
    campaign.traffic.exchange(20)
    campaign.flood()
    campaign.one("full for a while")


def full_at_kill(campaign: Campaign) -> None:
    """A processor, while the disk is full; its account is settled all the same."""
    filled(campaign)
    pid, stream = campaign.rng.choice(sorted(campaign.streams().items()))
    os.kill(pid, signal.SIGKILL)
    campaign.note("full at kill", [stream])
    campaign.part([stream])
    campaign.settled([stream])
    emptied(campaign)
    campaign.revived()


def full_group(campaign: Campaign) -> None:
    """Everything, while the disk is full; and the next one starts on a full disk."""
    filled(campaign)
    streams = campaign.streams()
    campaign.everything([campaign.proxy.process.pid, *streams])
    campaign.note("full group", list(streams.values()))
    campaign.part([client.stream for client in campaign.traffic.here])
    campaign.begin()
    campaign.settled(list(streams.values()))
    emptied(campaign)
    campaign.revived()


def full_at_exit(campaign: Campaign) -> None:
    """No kill: an end in order while the disk is full."""
    filled(campaign)
    streams = list(campaign.streams().values())
    campaign.traffic.stop()
    campaign.traffic.quiet()
    assert campaign.proxy.stop(WAIT_S) == 0
    campaign.note("full at exit", streams)
    emptied(campaign)
    campaign.again(streams)


_ORDINARY = (flood, idle, group, two, newborn, settling, control, orphans, standstill, in_order)
_OF_FULL_DISKS = (full_for_a_while, full_at_kill, full_group, full_at_exit)
KINDS: Final[dict[str, Callable[[Campaign], None]]] = {kind.__name__.replace("_", " "): kind for kind in (*_ORDINARY, *_OF_FULL_DISKS)}


def table(kills: list[Kill]) -> str:
    """By kind: how many, frames that reached their end, those that are not in the log, and what the log says of them."""
    lines = ["| kill | count | frames | missing | counted | at most | unknown | windows |", "|---|---|---|---|---|---|---|---|"]
    for kind in dict.fromkeys(kill.kind for kill in kills):
        mine = [kill for kill in kills if kill.kind == kind]
        found = [account for kill in mine for account in kill.accounts.values()]
        sums = [sum(getattr(account, name) for account in found) for name in ("truth", "missing", "exact", "at_most", "unknown")]
        states = sorted({state for account in found for state in account.states})
        lines.append(f"| {kind} | {len(mine)} | " + " | ".join(f"{value:,}" for value in sums) + f" | {', '.join(states)} |")
    return "\n".join(lines)
