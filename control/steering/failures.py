"""Where upstreams and listeners fail: the conditions behind ``alerts`` that take more than one metric."""

from collections.abc import Mapping
from typing import Final

from framegate.control.steering.condition import Condition, days_left, largest, lately, longest, rate, steady, summed, total
from framegate.proxy.cells.metrics import (
    API,
    BROKER,
    CAUSE,
    CERTIFICATE,
    CLIENT_ADDRESS,
    CLIENT_ID,
    CONSUMER,
    DIRECTION,
    ERROR_TYPE,
    LISTENER,
    MUTE_CAUSE,
    PRINCIPAL,
    PROBE,
    REFUSAL,
    SERVER_ADDRESS,
    SERVER_PORT,
    SIDE,
    SIGNAL,
    STATE,
    UPSTREAM,
    WORKER,
)

ENDPOINT: Final = (UPSTREAM, SERVER_ADDRESS, SERVER_PORT, BROKER)
HOUR_S, DAY_S = 3_600, 86_400
LEAST: Final = 0.05  # Bad events per second that are worth a ticket, if they are also 1 % of all
ADDRESSES: Final = total("upstream.endpoint.count", UPSTREAM)
UNREADY: Final = total("ready", where={PROBE: "readiness"}).equals(0.0)  # also while no processor runs, which would count addresses


def _answers(*by: str) -> Condition:
    """What has connections, and has answered in the last 20 s. (A processor that saw it fail tries it again when it has a client.)"""
    used = total("upstream.connection.count", *by, where={STATE: "used"}) > 0.0
    return used & (total("upstream.answer.recent", *by) > 0.0)


ACCEPTED: Final = rate("connection.accepted", LISTENER)
OF_LISTENERS: Final = largest("listener.upstream", LISTENER, UPSTREAM)
_HAS_CLIENTS: Final = OF_LISTENERS & (ACCEPTED > 0.0)  # Upstreams that clients want: one that is only checked, such as a standby, may be down
LEFT_OUT: Final = (total("upstream.endpoint.down", *ENDPOINT) > 0.0).unless(_answers(*ENDPOINT))
DOWN: Final = summed(LEFT_OUT, UPSTREAM)
GONE: Final = (DOWN >= ADDRESSES) & _HAS_CLIENTS
HALF_DOWN: Final = (DOWN >= ADDRESSES * 0.5) & (DOWN < ADDRESSES)
NAMELESS: Final = ADDRESSES.equals(0.0).unless(UNREADY) & _HAS_CLIENTS
UNRESOLVED: Final = total("upstream.endpoint.count", *ENDPOINT).equals(0.0).unless(UNREADY).unless(NAMELESS)
GONE_ALL_THE_TIME: Final = OF_LISTENERS & (steady("upstream.endpoint.down", UPSTREAM) >= ADDRESSES).unless(_answers(UPSTREAM))
"""Listeners for which FramegateUpstreamGone fires. If the upstream was there for a part of the time, that alert may not fire, and
FramegateClientsFail does."""
GONE_LATELY: Final = OF_LISTENERS & (longest("upstream.endpoint.down", UPSTREAM, how="sum") >= steady("upstream.endpoint.count", UPSTREAM))
ANSWERS, ASKS = (rate("upstream.frame.count", *ENDPOINT, where={DIRECTION: way}) for way in ("receive", "transmit"))
ANSWERED: Final = total("upstream.frame.count", *ENDPOINT, where={DIRECTION: "receive"})
ASKED: Final = total("upstream.answer.asked", *ENDPOINT)
RECENT: Final = total("upstream.answer.recent", *ENDPOINT)
"""Answers of the last 20 to 30 s. (A rate would have those from before the trouble until its window has passed.)"""
OPEN, WAITING = total("upstream.request.open", *ENDPOINT), total("upstream.answer.waiting", *ENDPOINT)
ENOUGH_S: Final = 20.0  # Clients of Kafka give up after 30 s as a rule, so the oldest request seldom becomes older
LONG_S: Final = 40.0  # in other protocols a request may wait for news, for 30 s as a rule, for 60 s sometimes
TOO_LONG_S: Final = 70.0
MEAN_WAIT: Final = total("upstream.answer.time", *ENDPOINT) / ANSWERED
WAITS: Final = (longest("upstream.answer.age", *ENDPOINT) > LONG_S) & (largest("upstream.answer.age", *ENDPOINT) > 1.0)
OLD_WAITS: Final = WAITS.unless(WAITS < MEAN_WAIT * 2.0)
OLD_REQUESTS: Final = (longest("upstream.request.age", *ENDPOINT) > ENOUGH_S) & (largest("upstream.request.age", *ENDPOINT) > 1.0)
"""Some wait now, and have waited long in the window: clients that give up come again, and wait anew."""
ANSWERS_ALL: Final = ANSWERED >= ASKED * 0.5
"""Endpoints that have answered as a rule until their last answer: what they are sent is meant to be answered. All of Kafka's are."""
ONE_WAY: Final = (ANSWERED < ASKED * 0.5) & (ASKED >= WAITING * 4.0)
"""The others, if clients go on without an answer, which those of an endpoint that hangs from the start do not."""
STUCK_REQUESTS: Final = OLD_REQUESTS & (OPEN > RECENT)
STUCK_API: Final = (longest("kafka.request.waiting", LISTENER, API) > 1.0) & rate("kafka.request.duration", LISTENER, API).equals(0.0)
"""Two connections or more wait for an API of which nothing is answered, while others may be."""
STUCK_WAITS: Final = (OLD_WAITS & (WAITING > RECENT)) & ((longest("upstream.answer.age", *ENDPOINT) > TOO_LONG_S) & ANSWERS_ALL)
"""As many wait as get an answer in that time, or more: not one of many only."""
SOME_WAITS: Final = OLD_WAITS.unless(STUCK_WAITS).unless(ONE_WAY)
ENDED: Final = rate("upstream.connection.closed", *ENDPOINT)
GIVEN_UP: Final = rate("upstream.connection.closed", *ENDPOINT, where={ERROR_TYPE: "unanswered"}) > 0.02
GIVE_UP: Final = ((GIVEN_UP / ENDED) > 0.05) & (GIVEN_UP * ENOUGH_S > RECENT * 0.01)
_STALLED: Final = total("upstream.send.stalled", *ENDPOINT) > 0.0
MOST_STALLED: Final = total("upstream.connection.count", *ENDPOINT, where={STATE: "used"}) * 0.5 <= _STALLED
SOME_STALLED: Final = _STALLED.unless(MOST_STALLED)
USUAL_ANSWERS: Final = (ANSWERED / ASKED) * ASKS
"""So many answers a second would come if the endpoint answered the share that it has answered so far: of what has no answer some is always sent."""
NO_ANSWERS: Final = ((GIVE_UP > 0.5) & (GIVEN_UP * (ENOUGH_S / 2.0) > RECENT)) & ANSWERS_ALL
FEW_ANSWERS: Final = ((GIVE_UP > 0.5) & (GIVEN_UP * (ENOUGH_S * 4.0) > RECENT)) & ((ANSWERS < USUAL_ANSWERS * 0.75) & ANSWERS_ALL)
"""Each client gets a few answers, as for its login, and then none."""
SOME_GIVE_UP: Final = (GIVE_UP & ((ANSWERS < USUAL_ANSWERS * 0.95) & ANSWERS_ALL)).unless(NO_ANSWERS).unless(FEW_ANSWERS)
ALL_GIVE_UP: Final = (GIVE_UP & (GIVEN_UP * 4.0 > ASKS)).unless(ANSWERS_ALL)
"""Clients of an endpoint that never answers as a rule, if they do not go on: they send it three frames or fewer before they leave."""
_MEANT: Final = rate("upstream.answer.asked", *ENDPOINT)
LOST: Final = (((_MEANT - ANSWERS) / (_MEANT > 0.2)) > 0.1) & ((ANSWERS < (ANSWERED / ASKED) * _MEANT * 0.9) & ANSWERS_ALL)
"""On connections that get answers, fewer come than usual. Where more came than were asked for, such as events, these may end."""
STOPPED: Final = ((ASKS > LEAST) & (ANSWERS.equals(0.0) & (ANSWERED > 0.0)) & ANSWERS_ALL).unless(STUCK_WAITS).unless(GIVE_UP)
"""Also where clients do not wait: they may have stopped to ask and send one-way frames, or only keep-alive ones."""
SLOWER: Final = (((rate("upstream.answer.time", *ENDPOINT) / (ANSWERS > 0.0)) > 3.0) > MEAN_WAIT * 4.0).unless(
    longest("upstream.answer.age", *ENDPOINT) > LONG_S  # it counts when its answer comes, in which case the trouble is over
)
BROKEN: Final = rate("upstream.connection.closed", *ENDPOINT, ERROR_TYPE, where={ERROR_TYPE: ".+", f"!{ERROR_TYPE}": "unanswered"})
CLIENTS: Final = total("connection.active", LISTENER, where={SIDE: "downstream"})
UPSTREAM_CAUSES: Final = (
    "upstream_refused|upstream_timeout|upstream_closed|peer_reset|wrong_protocol|tls_failed|auth_failed|receive_stalled|send_stalled|"
    "frame_too_large|negative_size"
)
NOT_CLIENTS: Final = {f"!{SIDE}": "downstream"}
OUR_CAUSES: Final = f"{UPSTREAM_CAUSES}|limit|internal|handler_failed"
_OURS: Final = {CAUSE: f"{OUR_CAUSES}|processor_died", **NOT_CLIENTS}
OURS: Final = rate("connection.closed", LISTENER, where=_OURS) & (lately("connection.closed", LISTENER, where=_OURS) > 2.5)
"""Connections that ended for a fault of framegate or of what is behind it; three at least in ten minutes."""
CLOSED: Final = rate("connection.closed", LISTENER)
IN_VAIN: Final = rate("connection.closed", LISTENER, where={CAUSE: OUR_CAUSES, **NOT_CLIENTS})
"""Those of a listener that still fails: a processor that died took long and good connections with it, and another has its place."""
RESPONSES: Final = rate("frame.count", LISTENER, where={SIDE: "downstream", DIRECTION: "transmit"})
ALL_FAIL: Final = ((ACCEPTED > 0.05) & (IN_VAIN >= ACCEPTED * 0.99)) & (ACCEPTED > RESPONSES)
DOOR: Final = {CAUSE: "tls_failed|wrong_protocol|handshake_timeout", f"!{SIDE}": "upstream"}
NOBODY: Final = rate("connection.closed", LISTENER, where={**DOOR, CAUSE: f"{DOOR[CAUSE]}|auth_failed"})
RECEIVED: Final = {SIDE: "downstream", DIRECTION: "receive"}
FRAMES, HOUR_AGO, DAY_AGO = (rate("frame.count", LISTENER, where=RECEIVED, ago_s=ago_s) for ago_s in (0, HOUR_S, DAY_S))
SILENT: Final = (FRAMES.equals(0.0) & (HOUR_AGO > 1.0)) & (DAY_AGO > 1.0)
_SILENT_NOW: Final = FRAMES.equals(0.0) & (lately("frame.count", LISTENER, where=RECEIVED) > 100.0)
_COMES: Final = ACCEPTED - rate("connection.closed", LISTENER, where={CAUSE: "no_data"})
_NOBODY_IN: Final = (ACCEPTED > LEAST) & (NOBODY >= _COMES * 0.99)
NOBODY_LONG, NOBODY_NOW = _NOBODY_IN & SILENT, _NOBODY_IN & _SILENT_NOW.unless(SILENT)
"""By the hour and the day before; in a younger framegate, or where it is not so each day, by the ten minutes before."""
ERROR: Final = {ERROR_TYPE: ".+"}
ATTEMPTS: Final = {f"!{ERROR_TYPE}": "abandoned"}
CONNECTS: Final = rate("upstream.connect.duration", *ENDPOINT, where=ATTEMPTS)
FAILED: Final = rate("upstream.connect.duration", *ENDPOINT, ERROR_TYPE, where={**ERROR, **ATTEMPTS})
LOGINS: Final = rate("authentication.count", LISTENER)
CLIENT: Final = (LISTENER, PRINCIPAL, CLIENT_ID, CLIENT_ADDRESS)
EXPORTED, UNEXPORTED = (rate("telemetry.exports", SIGNAL, where={ERROR_TYPE: error}) for error in ("", ".+"))
UNREAD: Final = largest("tap.lag", CONSUMER) / largest("tap.limit")
SLOW: Final = "frame.forward.duration"
QUICK_APIS: Final = {f"!{API}": "Fetch|JoinGroup|SyncGroup"}
KAFKA: Final = "kafka.request.duration"
BUSY: Final = rate("event_loop.time", WORKER, where={STATE: "busy"})
PENDING: Final = steady("channel.pending", LISTENER, SIDE)
NOT_ALLOWED: Final = rate("connection.closed", LISTENER, CAUSE, where={CAUSE: "auth_failed", f"!{SIDE}": "upstream"}).unless(LOGINS > 0.0)
"""Clients that are let in by their certificate or address only; where they log in, ``authentication.count`` has the reason."""
REFUSED: Final = rate("kafka.request.refused", LISTENER, API, REFUSAL, where={f"!{REFUSAL}": "report_only"})
MOST_REFUSED: Final = (REFUSED > LEAST).unless(
    rate("kafka.request.duration", LISTENER, API) >= rate("kafka.request.refused", LISTENER, API, where={f"!{REFUSAL}": "report_only"})
)
BROKERS_FAULTS: Final = {ERROR_TYPE: "leader_not_available|not_.*|request_timed_out|coordinator_.*|other"}
USUAL_ERRORS: Final = {
    f"!{ERROR_TYPE}": "member_id_required|rebalance_in_progress|fetch_session_id_not_found|invalid_fetch_session_epoch|"
    "unsupported_version|concurrent_transactions"
}
"""Answers to clients that have done nothing wrong, at brokers that have not either: a newer client asks an older broker for its versions twice, and a
transaction begins while the last one is being written."""


def _errors(share: float, where: Mapping[str, str]) -> Condition:
    """Of the answers of a broker more than this share is an error."""
    return ((rate("kafka.response.errors", *ENDPOINT, ERROR_TYPE, where=where) > LEAST) / ANSWERS) > share


MOST_ERRORS, MANY_ERRORS = _errors(0.5, BROKERS_FAULTS), _errors(0.05, {**ERROR, **USUAL_ERRORS})


def ends(days: float, share: float, pattern: str) -> Condition:
    """Certificates, or revocation lists, that end within so many days and this share of their life: some are made for hours, and renewed in time."""
    where = {pattern: ".*/crl"}
    life = (total("tls.certificate.not_after", CERTIFICATE, where=where) - total("tls.certificate.not_before", CERTIFICATE, where=where)) / DAY_S
    return (days_left("tls.certificate.not_after", CERTIFICATE, where=where) < days) < life * share


ENDS_NOW, ENDS_SOON = ends(3.0, 0.1, f"!{CERTIFICATE}"), ends(14.0, 0.2, f"!{CERTIFICATE}")
LIST_ENDS: Final = ends(1.0, 0.1, CERTIFICATE)  # Revocation lists are usually made every few days


def muted_by(cause: str) -> Condition:
    """Channels are muted for this cause, all the time."""
    return steady("channel.muted", where={MUTE_CAUSE: cause}) > 0.0
