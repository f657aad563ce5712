"""What each client uses and does: bytes, frames, memory, refusals, logins that failed. Control ranks the clients.

A client is a listener, a principal, a client id and an address without port (of IPv6 its /64). Nothing is counted for a frame: what a connection has
passed is added up when control asks (``jobs.ClientsJob``) and when it ends. Failed logins are added up by user and address, by user alone and by
address alone, so that one user that is tried from everywhere is found as well as one address that tries every user.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.config.limits import client_key
from framegate.proxy.errors import AuthenticationError
from framegate.proxy.relay.frequent import MEASURES, Frequent, Key
from framegate.proxy.relay.pair import Pair

REFUSED: Final = (Cause.FRAME_TOO_LARGE, Cause.NEGATIVE_SIZE, Cause.WRONG_PROTOCOL, Cause.TLS_FAILED, Cause.AUTH_FAILED, Cause.HANDSHAKE_TIMEOUT)


def traffic_of(pair: Pair) -> tuple[i64, i64, i64, i64]:
    """Frames of requests and of responses, and their bytes."""
    client, upstream = pair.client.channel, pair.upstream.channel
    frames = i64(0) if client is None else client.frames_received
    size = i64(0) if client is None else client.bytes_received
    if client is not None and pair.route.upstream is None:
        return frames, client.write_half.frames_sent, size, client.write_half.bytes_sent
    if upstream is None:
        return frames, 0, size, 0
    return frames, upstream.frames_received, size, upstream.bytes_received


def client_of(pair: Pair) -> Key:
    """The client of a pair."""
    client = pair.client.channel
    if client is None:
        return (pair.route.listener, "", "", "")
    told = None if pair.pairing is None else pair.pairing.client
    return (pair.route.listener, client.principal, "" if told is None else told.client_id, client_key(client.peer))


def _held(pair: Pair) -> i64:
    """Bytes of the memory pool that both channels have booked."""
    held = pair.client.held_bytes() + pair.upstream.held_bytes()
    for channel in (pair.client.channel, pair.upstream.channel):
        if channel is not None:
            held += channel.read_booked + channel.write_half.pending.booked + channel.write_half.booked_tls
    return held


class ClientUse:
    """Adds up ``MEASURES`` since the last ``take``, in bounded memory."""

    def __init__(self) -> None:
        self.lists: dict[str, Frequent] = {}  # by the words of ``MEASURES``
        # the amounts of all clients of a listener, exactly, by measure and listener; not of the last two measures
        self.totals: dict[tuple[str, str], int] = {}
        self.take()

    def take(self) -> tuple[dict[str, Frequent], dict[tuple[str, str], int]]:
        """The lists and totals; new ones begin."""
        taken = self.lists, self.totals
        self.lists = {measure: Frequent() for measure in MEASURES}
        self.totals = {}
        return taken

    def see(self, pair: Pair) -> None:
        """Add what an open pair has passed since the last time, and what it holds now."""
        held = _held(pair)
        if held > 0:
            self._add("held", client_of(pair), held)
        self._pass(pair)

    def _pass(self, pair: Pair) -> None:
        traffic = traffic_of(pair)
        frames, size = traffic[0] + traffic[1], traffic[2] + traffic[3]
        if size != pair.reported_bytes:
            client = client_of(pair)
            self._add("bytes", client, size - pair.reported_bytes)
            if frames != pair.reported_frames:
                self._add("frames", client, frames - pair.reported_frames)
            pair.reported_bytes, pair.reported_frames = size, frames

    def ended(self, pair: Pair) -> None:
        """Add what a pair that is CLOSED has passed since the last time, and that its client was refused, or its login failed."""
        self._pass(pair)
        if pair.side != "downstream" or pair.cause not in REFUSED:
            return
        client, channel = client_of(pair), pair.client.channel
        error = None if channel is None else channel.error
        if not isinstance(error, AuthenticationError) or error.failure not in ("credentials", "unavailable"):
            self._add("refusals", client, 1)
            return
        listener, _, client_id, address = client
        if error.failure == "unavailable":
            self._add("unavailable", (listener, "", "", ""), 1)
        else:
            self._add("logins", (listener, error.attempted, client_id, address), 1)
            self.lists["login_users"].add((listener, error.attempted, "", ""), 1)
            self.lists["login_addresses"].add((listener, "", "", address), 1)

    def _add(self, measure: str, client: Key, amount: i64) -> None:
        self.lists[measure].add(client, amount)
        place = (measure, client[0])
        self.totals[place] = self.totals.get(place, 0) + int(amount)
