"""Holds what a log says of itself against what the two ends of the traffic know.

A frame that reached its end is in the log, or the log says that it is not: counted, bounded, or unknown. What the log has was sent, once, byte for
byte. Where the log says that it is complete, nothing is missing: what retention took is not there any more, and must be called cut.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from framegate.proxy.tap.completeness import Verdict, verify
from framegate.proxy.tap.ledger import Ledger, read_ledger, run_of
from framegate.proxy.tap.record import FLAG_TRUNCATED, HASH_BYTES
from tests.fakes.tap_read import read_frames, read_gaps
from tests.fakes.traffic import Client, Traffic

WHOLE: Final = {"complete", "cut", "open"}
KAFKA: Final = "kafka"  # the listener of others than ``Traffic``, which are not judged here
Key = tuple[str, str, str]  # Stream, listener, direction
Tapped = Callable[[str, str], str]  # what is captured of a listener and direction: full, a number of bytes, lengths, hash; "" nothing


@dataclasses.dataclass
class Account:
    """Of one stream, listener and direction."""

    truth: int = 0  # frames that reached their end
    sent: int = 0  # frames that may have been seen
    stored: int = 0  # frames in the log, whether they reached their end or not
    missing: int = 0  # of ``truth``, not in the log
    # exact, at_most: in gaps, sampled ones and those of frames whose pieces are gone included
    exact: int = 0
    at_most: int = 0
    unknown: int = 0  # gaps without a count
    seen: int = 0  # by totals
    quiet: bool = True  # all that was sent has come back: ``truth`` is what was seen
    states: set[str] = dataclasses.field(default_factory=set)  # of its windows
    cut: bool = False  # retention took something of one

    @property
    def counted(self) -> bool:
        """Nothing of it is a bound, or unknown."""
        return not self.unknown and not self.at_most and "open" not in self.states and "cut" not in self.states


def judge(directory: Path | str, traffic: Traffic, tapped: Tapped, faults: Iterable[str] = ()) -> dict[Key, Account]:
    """Check everything, and raise AssertionError for what is not as it must be.

    Args:
        directory: of the tap, or the URL of the node in a store.
        traffic: all that there ever was; none is under way.
        tapped: by listener and direction.
        faults: of the verdict, of which parts are expected.

    Returns: What was found, by stream, listener and direction.
    """
    root = str(directory)
    ledger, verdict = read_ledger(root), verify(root)
    while (after := read_ledger(root)).last != ledger.last:  # retention goes on: both are to be of one moment
        ledger, verdict = after, verify(root)
    unexpected = [fault for fault in verdict.faults if not any(part in fault for part in faults)]
    assert not unexpected, unexpected
    accounts: dict[Key, Account] = {}
    stored = _stored(root, traffic.clients, tapped)
    received = traffic.echo.received()
    for client in traffic.clients:
        answers, requests = client.received(), received.get(client.number, 0)
        for direction, truth, sent in (("request", requests, client.sent), ("response", answers, requests)):
            if tapped(client.listener, direction):
                account = accounts.setdefault((client.stream, client.listener, direction), Account())
                numbers = stored.get((client.number, direction), set())
                assert not numbers or max(numbers) < sent, "a frame that was never sent"
                account.truth += truth
                account.sent += sent
                account.stored += len(numbers)
                account.missing += truth - len(numbers & set(range(truth)))
                account.quiet = account.quiet and answers == client.sent
    _add_verdict(accounts, verdict)
    _add_gaps(accounts, root, ledger)
    for key, account in accounts.items():
        _check(key, account, ledger, verdict)
    if verdict.complete:
        for key, account in accounts.items():
            assert account.cut or account.missing <= account.exact, f"complete, and frames are missing: {key}: {account}"
    return accounts


def _stored(root: str, clients: list[Client], tapped: Tapped) -> dict[tuple[int, str], set[int]]:
    """Numbers of the frames in the log, by client and direction, each of them checked."""
    by_id = {client.id: client for client in clients}
    found: dict[tuple[int, str], set[int]] = {}
    for item in read_frames(root):
        if item.listener == KAFKA:
            continue
        assert item.connection in by_id, f"a connection that no client had: {item}"
        client = by_id[item.connection]
        assert (item.stream, item.listener, item.peer) == (client.stream, client.listener, item.peer)
        body = client.body(item.number)
        assert item.size == len(body)
        kept = _kept(body, tapped(item.listener, item.direction))
        if item.body != kept and not item.flags & FLAG_TRUNCATED and kept.startswith(item.body):
            assert item.transfer_us is not None, "only of frames that were cut through there may be less than there must be"
            continue
        assert item.body == kept, "what is in the log is not what was sent"
        numbers = found.setdefault((client.number, item.direction), set())
        assert item.number not in numbers, "a frame that is in the log twice"
        numbers.add(item.number)
    return found


def _kept(body: bytes, capture: str) -> bytes:
    if capture == "hash":
        return hashlib.blake2b(body, digest_size=HASH_BYTES).digest()
    return b"" if capture == "lengths" else body if capture == "full" else body[: int(capture)]


def _add_verdict(accounts: dict[Key, Account], verdict: Verdict) -> None:
    """What the windows say; each that has frames must be of an account."""
    for row in verdict.rows:
        if row.listener == KAFKA:
            continue
        key = (row.stream, row.listener or "", row.direction)
        if key not in accounts and (row.seen or row.accounted):
            accounts[key] = Account()
        if key in accounts:
            account = accounts[key]
            account.states.add(row.state)
            account.cut = account.cut or row.cut
            account.seen += row.seen
            account.exact += row.lost + row.sampled
            account.unknown += row.unknown


def _owner(stream: str, ledger: Ledger) -> str:
    """The stream that a recovery stream speaks of."""
    node, slot, boot_id = stream.rsplit(".", 2)
    if slot != "recovery":
        return stream
    return next((name for name in ledger.streams if name != stream and name.startswith(f"{node}.") and name.endswith(f".{boot_id}")), stream)


def _add_gaps(accounts: dict[Key, Account], root: str, ledger: Ledger) -> None:
    """Bounds, and exact losses that lie in several windows: each once, though it touches several."""
    minute = 60_000_000_000
    for gap in read_gaps(root):
        if gap.listener == KAFKA:
            continue
        key = (_owner(gap.stream, ledger), gap.listener or "", gap.direction)
        account: Any = accounts.setdefault(key, Account())
        if gap.certainty == "at_most":
            account.at_most += gap.frames
        elif gap.certainty == "exact" and gap.from_ns // minute != gap.until_ns // minute:
            account.exact += gap.frames


def _check(key: Key, account: Account, ledger: Ledger, verdict: Verdict) -> None:
    stream_record = ledger.streams.get(key[0])
    said = f"{key}: {account}; the ledger: {stream_record}"
    if account.unknown or (stream_record is not None and not stream_record.settled and any(key[0] in fault for fault in verdict.faults)):
        return  # nobody knows, and it is said
    assert account.seen <= account.sent, f"more was seen than was sent: {said}"
    assert "missing" not in account.states, f"something is gone and no row says so: {said}"
    taken = [other for name, other in ledger.streams.items() if other.deleted_to and run_of(name) == run_of(key[0])]
    if taken and account.cut:
        assert account.stored or not account.states & {"complete", "open"}, f"retention took all of it: {said}"
        return  # and what would be compared
    assert taken or not account.cut, f"retention took nothing: {said}"  # what it was about to take when control died may be there, all of it
    assert account.missing <= account.exact + account.at_most, f"frames are missing and nothing says so: {said}"
    assert account.truth <= account.stored + account.exact + account.at_most, f"the bound is none: {said}"
    assert account.stored + account.exact <= account.sent, f"more is lost than was sent: {said}"
    if account.states <= WHOLE:
        assert not account.at_most, said
    if account.quiet and account.counted:
        assert account.truth == account.stored + account.exact == account.seen, f"the equation does not hold: {said}"
