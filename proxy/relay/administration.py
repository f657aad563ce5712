"""What operators do to connections: mute, unmute, close, throttle; at once, or to new ones by standing actions (``standing``).

A client is READY before anything else of it is read, so a standing action applies to the whole connection; one that asks for the client id applies
after the first read that has requests. Of several mutes, and of several throttles, of one connection the last one counts.
"""

from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.network import mute as causes
from framegate.proxy.network.timer import CallbackTimer
from framegate.proxy.relay import ending
from framegate.proxy.relay.pair import Pair
from framegate.proxy.relay.standing import CLOSE, MUTE
from framegate.proxy.relay.state import PairState
from framegate.proxy.relay.throttle import PairRates

ADMIN: Final = causes.ADMIN


def mute(pair: Pair, action: i64, reason: str) -> bool:
    """Mute the client; True when no further header will be read."""
    pair.reason = reason
    pair.mute_action = action
    client = pair.client.channel
    return client is None or client.mute(ADMIN)


def unmute(pair: Pair) -> None:
    """Undo ``mute``."""
    pair.mute_action = 0
    if pair.client.channel is not None:
        pair.client.channel.unmute(ADMIN)


def close(pair: Pair, reason: str) -> None:
    """End the connection; whole frames that were received are still delivered."""
    ending.end(pair, Cause.ADMIN, reason, "internal")


def throttle(pair: Pair, action: i64, reason: str, request: i64, response: i64) -> None:
    """Give the connection rates of its own, in place of those before; both 0: none."""
    before = pair.rates
    pair.rates = None if request == 0 and response == 0 else PairRates(pair.owner.selector, action, reason, request, response)
    pair.client.join_quotas()
    pair.upstream.join_quotas()
    if before is not None:
        before.cancel()


def greet(pair: Pair) -> bool:
    """Apply the standing actions to a connection whose client is READY; whether one has closed it."""
    return _apply(pair, "", by_client=not pair.route.kafka)


def identified(pair: Pair) -> None:
    """The client id is known: apply the standing actions that ask for it, when the present read is done."""
    selector = pair.owner.selector
    selector.call_at(selector.now_ns, CallbackTimer(lambda: _apply_by_client(pair)))


def _apply_by_client(pair: Pair) -> None:
    told = None if pair.pairing is None else pair.pairing.client
    if told is not None and pair.state is not PairState.CLOSING and pair.state is not PairState.CLOSED:
        _apply(pair, told.client_id, by_client=True, others=False)


def _apply(pair: Pair, client_id: str, *, by_client: bool, others: bool = True) -> bool:
    """Apply those that ask for the client id, those that do not, or both; whether one has closed it."""
    client = pair.client.channel
    if client is None:
        return False
    for standing in pair.owner.standing:
        asked = by_client if standing.by_client else others
        if not asked or not standing.is_for(pair.route.listener, client.peer, client.principal, client_id):
            continue
        if standing.verb == CLOSE:
            close(pair, standing.reason)
            return True
        if standing.verb == MUTE:
            mute(pair, standing.number, standing.reason)
        else:
            throttle(pair, standing.number, standing.reason, standing.request, standing.response)
    return False
