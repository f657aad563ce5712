"""How a pair opens (rule 1): the client's channel is registered, becomes READY, and is muted for ``peer`` until an endpoint of its upstream answers.

Attempts are made one after the other, of the endpoints that ``Upstream.pick`` returns; ``Pair.tried`` has the failed ones. An attempt ends when the
upstream's channel is READY or closed. If the upstream requires a login (``login``), the client's principal selects it; a refused login ends the pair,
and no other endpoint is tried. A client that authenticates in an exchange of its own gets its answer after the upstream has accepted the login
(``admits_principal``). A client without a login is refused; when the upstream refuses the login, the client is told to try again.
"""

import errno
from typing import Final

from mypy_extensions import i64

from framegate.proxy.cause import Cause
from framegate.proxy.cells import LISTENER_BLOCK
from framegate.proxy.errors import LoginError
from framegate.proxy.network import mute
from framegate.proxy.network.channel import Channel
from framegate.proxy.network.proxy_protocol import HeaderWriter, header_bytes
from framegate.proxy.network.timer import NEVER
from framegate.proxy.network.translation import Translation
from framegate.proxy.relay import administration, ending, state, tapping
from framegate.proxy.relay.cluster import BOOTSTRAP
from framegate.proxy.relay.ending import ACTIVE
from framegate.proxy.relay.kafka_rules import KafkaJudge
from framegate.proxy.relay.login import Logins
from framegate.proxy.relay.pair import Leg, Pair
from framegate.proxy.relay.pairing import Pairing
from framegate.proxy.relay.prepared_answers import PreparedAnswers
from framegate.proxy.relay.renewal import Renewal
from framegate.proxy.relay.rewriting import Rewriting
from framegate.proxy.relay.state import PairEvent, PairState
from framegate.proxy.relay.upstream import Attempt, Tried, Upstream
from framegate.proxy.tap.record import DIRECTION_REQUEST, DIRECTION_RESPONSE

PEER: Final = mute.PEER
ACCEPTED: Final = LISTENER_BLOCK.at("framegate.connection.accepted")
CLOSING: Final = PairState.CLOSING
HANDSHAKING: Final = PairState.HANDSHAKING

NO_SOCKET: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # this host's fault; other errors are the endpoint's
ENDPOINT_CAUSES: Final = (
    Cause.UPSTREAM_REFUSED,
    Cause.UPSTREAM_TIMEOUT,
    Cause.TLS_FAILED,
    Cause.AUTH_FAILED,
    Cause.PEER_RESET,
    Cause.PEER_CLOSED,
    Cause.NO_DATA,
    Cause.WRONG_PROTOCOL,
)  # Causes of failed attempts for which the endpoint is taken down


def start(pair: Pair, channel: Channel) -> None:
    """The client's channel is registered."""
    pair.client.channel = channel
    pair.client.gone = False
    counters = pair.route.counters
    counters.counts.cells[ACCEPTED] += 1
    counters.downstream_counts.cells[ACTIVE] += 1
    pair.owner.loop.begin_handshake(channel)


def admits_principal(pair: Pair, principal: str) -> bool:
    """Whether an authenticated client may connect; see ``ChannelSink.admits_principal``."""
    upstream, logins = pair.upstream.channel, pair.route.logins
    if upstream is None and pair.refusal is None:
        if logins is None or pair.owner.draining:
            return True
        if pair.state is HANDSHAKING and _may_log_in(pair, logins, principal):
            _connect(pair)
    if pair.refusal is not None:
        raise pair.refusal
    return upstream is not None and upstream.ready_ns != 0


def ready(pair: Pair, leg: Leg) -> None:
    """A channel is READY."""
    channel = leg.channel
    assert channel is not None, "a leg with events has a channel"
    if leg.is_client:
        _client_ready(pair, channel)
    else:
        _upstream_ready(pair, channel)


def _client_ready(pair: Pair, channel: Channel) -> None:
    pair.owner.loop.end_handshake(channel)
    if ending.end_revoked(pair):  # it may have been checked against old data
        return
    if pair.route.upstream is None:
        _serve(pair, channel)
        return
    pair.state = state.next_state(pair.state, PairEvent.CLIENT_READY)
    tapping.match(pair, pair.client, channel, DIRECTION_REQUEST)
    pair.client.match_limits()
    upstream, logins = pair.upstream.channel, pair.route.logins
    if upstream is None:
        channel.mute(PEER)
    if pair.owner.draining:
        ending.end(pair, Cause.DRAINED, "", "internal")
    elif pair.owner.standing and administration.greet(pair):
        return
    elif upstream is not None:
        _open(pair, channel, upstream)
        upstream.unmute(PEER)
    elif logins is None or _may_log_in(pair, logins, channel.principal):
        _connect(pair)


def _may_log_in(pair: Pair, logins: Logins, principal: str) -> bool:
    """Choose the login for the upstream. False: there is none now, and the pair ends."""
    login = logins.choose(principal)
    if login is None:
        _refuse(pair, f"no identity of {_upstream(pair).name} is for the principal {principal}", refused=True, denied=True)
        return False
    now_ns = pair.owner.selector.now_ns
    pair.login = login.begin(now_ns)
    if pair.login is None:
        _refuse(pair, login.why_not(now_ns), refused=True)
        return False
    return True


def _refuse(pair: Pair, detail: str, *, refused: bool, denied: bool = False) -> None:
    """End a pair whose login is refused or has no secret. A client that waits for the result of its authentication gets it first."""
    client = pair.client.channel
    assert client is not None, "the client came first"
    error = LoginError(detail, refused=refused, denied=denied)
    error.side = "upstream" if refused else "internal"
    if client.ready_ns != 0:
        ending.end(pair, Cause.AUTH_FAILED, detail, error.side)
    else:
        pair.refusal = error
        client.queue_handshake()


def _serve(pair: Pair, channel: Channel) -> None:
    """Open a pair without an upstream: a handler answers."""
    pair.state = state.next_state(pair.state, PairEvent.SERVED)
    pair.upstream.ended = True
    tapping.match(pair, pair.client, channel, DIRECTION_REQUEST)
    tapping.match(pair, pair.upstream, channel, DIRECTION_RESPONSE)
    pair.client.match_limits()
    if pair.route.kafka:
        pair.pairing = Pairing(pair.route.counters.pairing)
        tapping.share_facts(pair)
    if pair.owner.reports_open:
        pair.owner.watcher.pair_opened(pair)
    if pair.owner.draining:
        ending.end(pair, Cause.DRAINED, "", "internal")
    elif pair.owner.standing:
        administration.greet(pair)


def _connect(pair: Pair) -> None:
    """Try the endpoint that the upstream chooses; end the pair when every one has failed."""
    upstream, selector = _upstream(pair), pair.owner.selector
    brokers, client = pair.route.brokers, pair.client.channel
    if brokers is not None and pair.broker == BOOTSTRAP and client is not None and client.identity is not None:
        pair.broker = brokers.broker_of(client.identity.host)
    while True:
        attempt = upstream.pick(pair.tried, selector.now_ns, pair.broker)
        if attempt is None:
            _give_up(pair)
            return
        if _start_attempt(pair, attempt):
            return


def _start_attempt(pair: Pair, attempt: Attempt) -> bool:
    """Connect to an endpoint; False: the next one is to be tried."""
    selector, endpoint = pair.owner.selector, attempt.endpoint
    options = pair.route.upstream_options[endpoint.server_name]
    pair.endpoint = endpoint.text
    pair.attempts += 1
    if pair.connect_began_ns == 0:
        pair.connect_began_ns = selector.now_ns
    try:
        channel = selector.connect(endpoint.family, endpoint.address, pair.id, options, pair.upstream, peer=endpoint.text)
    except OSError as error:
        pair.connect_ended_ns = selector.now_ns
        if error.errno in NO_SOCKET:
            _upstream(pair).abandoned(attempt, selector.now_ns)
            _give_login_back(pair)
            ending.end(pair, Cause.LIMIT, f"{endpoint.text}: {error}", "internal")
            return True
        _note_failure(pair, attempt, Cause.UPSTREAM_REFUSED, str(error), selector.now_ns)
        return False
    pair.owner.loop.begin_handshake(channel)
    if pair.route.send_proxy_protocol:
        client = pair.client.channel
        assert client is not None, "the client came first"
        channel.preamble = HeaderWriter(header_bytes(pair.route.send_proxy_protocol, client.peer, client.own_address))
    if pair.login is not None:
        channel.login = pair.login.login.factory
    pair.attempt = attempt
    pair.upstream.channel = channel
    pair.upstream.gone = False
    return True


def _note_parts(pair: Pair, channel: Channel) -> None:
    connected_ns = channel.secured_ns if channel.options.tls is None else channel.connected_ns
    pair.attempt_ns = channel.opened_ns, connected_ns, channel.secured_ns, channel.ready_ns


def _note_failure(pair: Pair, attempt: Attempt, cause: Cause, detail: str, now_ns: i64) -> None:
    endpoint = attempt.endpoint
    if pair.tried is None:
        pair.tried = Tried()
    pair.tried.add(endpoint, cause, f"{endpoint.text}: {detail}")
    upstream = _upstream(pair)
    if upstream.failed(attempt, cause, detail, now_ns):
        pair.owner.watcher.endpoint_changed(upstream, endpoint)


def _give_login_back(pair: Pair) -> None:
    if pair.login is not None:
        pair.login.abandoned()
        pair.login = None


def _give_up(pair: Pair) -> None:
    _give_login_back(pair)
    tried = pair.tried
    full = _upstream(pair).count_full(pair.broker)
    if tried is None and full != 0:
        each = "its endpoint has" if full == 1 else f"each of its {full} endpoints has"
        ending.end(pair, Cause.LIMIT, f"the upstream is full: {each} max_connections", "internal")
        return
    if tried is None:
        _upstream(pair).unresolved(pair.broker)
        ending.end(pair, Cause.UPSTREAM_REFUSED, _no_address(pair), "upstream")
        return
    cause = tried.cause
    if cause is Cause.PEER_RESET or cause is Cause.PEER_CLOSED or cause is Cause.NO_DATA:
        cause = Cause.UPSTREAM_CLOSED
    count = len(tried.endpoints)
    detail = tried.detail if count == 1 else f"{tried.detail} (the last of {count} endpoints tried)"
    if pair.route.brokers is not None and pair.broker != BOOTSTRAP:
        detail = f"cannot connect to broker {pair.broker}: {detail}"
    ending.end(pair, cause, f"{detail}; {full} others are full" if full else detail, "upstream")


def _no_address(pair: Pair) -> str:
    brokers = pair.route.brokers
    if brokers is None or pair.broker == BOOTSTRAP:
        return "the upstream has no address"
    cluster = brokers.cluster
    known = int(pair.broker) in cluster.brokers
    return f"broker {pair.broker} {'has no address' if known else f'is not in the cluster {cluster.upstream}'}"


def _upstream_ready(pair: Pair, channel: Channel) -> None:
    client = pair.client.channel
    attempt = pair.attempt
    assert client is not None, "the client came first"
    assert attempt is not None, "an upstream with events was tried"
    pair.attempt = None
    pair.tried = None
    pair.used = attempt.endpoint
    pair.connect_ended_ns = channel.ready_ns
    _note_parts(pair, channel)
    if pair.login is not None:
        pair.login.accepted(channel.ready_ns)
    upstream = _upstream(pair)
    if upstream.answered(attempt, channel.ready_ns):
        pair.owner.watcher.endpoint_changed(upstream, attempt.endpoint)
    if upstream.ejection is not None:
        upstream.ejection.watch(attempt.endpoint, channel.write_half, client.write_half, attempt.began_ns, channel.ready_ns)
    pair.owner.loop.end_handshake(channel)
    pair.route.counters.upstream_counts.cells[ACTIVE] += 1
    if client.ready_ns == 0:  # it waits for the result of its authentication
        channel.mute(PEER)
        client.queue_handshake()
    else:
        _open(pair, client, channel)
        client.unmute(PEER)


def _open(pair: Pair, client: Channel, channel: Channel) -> None:
    if pair.login is not None:
        if channel.renew_ns != NEVER:
            pair.renewal = Renewal(pair, channel, pair.login.login)
        pair.login = None
    if client.options.framing is not channel.options.framing:
        pair.client.translation = Translation(client.options.framing, channel.options.framing, pair.owner.scratch)
        pair.upstream.translation = Translation(channel.options.framing, client.options.framing, pair.owner.scratch)
    pair.state = state.next_state(pair.state, PairEvent.UPSTREAM_READY)
    tapping.match(pair, pair.upstream, channel, DIRECTION_RESPONSE)
    pair.upstream.join_quotas()
    if pair.route.kafka:
        brokers, rules = pair.route.brokers, pair.route.rules
        errors = None if pair.used is None else pair.used.counters.counts
        if brokers is None and rules is None:
            pair.pairing = Pairing(pair.route.counters.pairing, errors=errors)
        else:
            assert pair.route.handler is None, "its frames are not judged; the configuration refuses it"
            account = client.options.account or pair.owner.selector.pool.common
            pair.pairing = Pairing(pair.route.counters.pairing, PreparedAnswers(account), errors)
            pair.rewriting = Rewriting(brokers, pair.pairing, None if rules is None else KafkaJudge(rules, client.principal))
        tapping.share_facts(pair)
    if pair.owner.reports_open:
        pair.owner.watcher.pair_opened(pair)
    tapping.forward(pair, pair.client)
    tapping.forward(pair, pair.upstream)


def _upstream(pair: Pair) -> Upstream:
    upstream = pair.route.upstream
    assert upstream is not None, "an attempt is of an upstream"
    return upstream


def attempt_failed(pair: Pair, channel: Channel) -> None:
    """An upstream's channel closed before it was READY."""
    pair.upstream.gone = True
    attempt = pair.attempt
    assert attempt is not None, "an upstream with events was tried"
    pair.attempt = None
    pair.owner.loop.end_handshake(channel)
    pair.connect_ended_ns = channel.closed_ns
    _note_parts(pair, channel)
    pair.upstream.channel = None
    cause = channel.close_cause or Cause.INTERNAL
    error = channel.error
    if pair.state is not CLOSING and isinstance(error, LoginError):
        _login_failed(pair, attempt, channel, error)
        return
    if pair.state is not CLOSING and cause in ENDPOINT_CAUSES:
        _note_failure(pair, attempt, cause, channel.detail, channel.closed_ns)
        _connect(pair)
        return
    _upstream(pair).abandoned(attempt, channel.closed_ns)
    _give_login_back(pair)
    if pair.state is CLOSING:
        ending.check_gone(pair)
    else:
        ending.end(pair, cause, channel.detail, "internal")


def _login_failed(pair: Pair, attempt: Attempt, channel: Channel, error: LoginError) -> None:
    """The endpoint has answered, but refused the login; or there is no secret."""
    upstream = _upstream(pair)
    if upstream.answered(attempt, channel.closed_ns, refused=True):
        pair.owner.watcher.endpoint_changed(upstream, attempt.endpoint)
    if pair.login is not None and error.refused:
        pair.login.refused(channel.detail, channel.closed_ns)
        pair.login = None
    _give_login_back(pair)
    _refuse(pair, f"{attempt.endpoint.text}: {channel.detail}", refused=error.refused)
