"""The problems that framegate knows, in words: for ``framegate status``; as PromQL for the first dashboard and the alerts (``deploy/dashboards``).

Pages (critical) are for what clients of ours suffer now, or will soon for certain. What strangers do (handshakes and logins that fail) is a ticket.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from framegate.control.steering.condition import (
    STEP_S,
    Condition,
    History,
    days_left,
    grown,
    largest,
    lately,
    longest,
    rate,
    slope,
    smallest,
    steady,
    total,
    values_of,
)
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
    FILE_KIND,
    LISTENER,
    MEASURE,
    MUTE_CAUSE,
    PLACE,
    PRINCIPAL,
    PROBE,
    REASON,
    SERVER_ADDRESS,
    SERVER_PORT,
    SIDE,
    SIGNAL,
    STATE,
    TASK,
    UPSTREAM,
)
from framegate.proxy.cells.standard_metrics import PROCESS

__all__ = ["ALERTS", "FINE", "LIMIT_S", "STEP_S", "Alert", "Found", "Problem", "Watch"]

Severity = Literal["critical", "warning", "info"]
FINE: Final = "Everything is fine"
LIMIT_S: Final = 20.0
"""A sample that takes longer is a fault of the control process."""
FRESH_S: Final = 2.0
"""A sample that is younger is not taken anew for the one who asks."""
WORKER: Final = "framegate.worker"
ENDPOINT: Final = (UPSTREAM, SERVER_ADDRESS, SERVER_PORT, BROKER)
HOUR_S, DAY_S = 3_600, 86_400
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem.

    Attributes:
        words: what is wrong.
        condition: where it is true there is the problem; its labels say where, its value how much.
        measure: the unit of that value; with ``%`` at its beginning the value is a share, and is shown as a percentage, at most 100.
        command: where to look first; ``{framegate.cause}`` is the value of that label.
    """

    words: str
    condition: Condition
    measure: str
    command: str

    @property
    def is_share(self) -> bool:
        """Whether its value is a share."""
        return self.measure.startswith("%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Problems with one remedy, which is a section of the runbook.

    Attributes:
        name: of the alert, and of the section.
        hold: how long it must be true before the alert fires, a duration of Prometheus.
        windows: the ranges of rates; it must be true in each of them.
    """

    name: str
    severity: Severity
    problems: tuple[Problem, ...]
    hold: str = "5m"
    windows: tuple[str, ...] = ("5m",)


def _problem(words: str, condition: Condition, measure: str, command: str) -> Problem:
    return Problem(words=words, condition=condition, measure=measure, command=f"framegate {command}")


_UPSTREAMS, _CLOSED, _READERS = "upstreams list", "channels list --closed", "tap consumers list /var/lib/framegate/tap"
_CLOSED_BY: Final = f"{_CLOSED} --filter cause={{{CAUSE}}}"
_CLOSED_AT: Final = f"{_CLOSED} --filter listener={{{LISTENER}}}"
_LOGIN_ENDS: Final = f"{_CLOSED} --filter cause=auth_failed"
_DOWN, _ADDRESSES = (total(f"upstream.endpoint.{name}", UPSTREAM) for name in ("down", "count"))
_UNREADY: Final = total("ready", where={PROBE: "readiness"}).equals(0.0)
"""Also while no processor runs, which would count addresses."""


def _answers(*by: str) -> Condition:
    """What has connections, and has answered in the last 20 s. (A processor that saw it fail tries it again when it has a client.)"""
    used = total("upstream.connection.count", *by, where={STATE: "used"}) > 0.0
    return used & (total("upstream.answer.recent", *by) > 0.0)


_GONE: Final = (_DOWN >= _ADDRESSES).unless(_answers(UPSTREAM))
_HALF_DOWN: Final = (_DOWN >= _ADDRESSES * 0.5) & (_DOWN > 0.0) & (_DOWN < _ADDRESSES)
_LEFT_OUT: Final = (total("upstream.endpoint.down", *ENDPOINT) > 0.0).unless(_answers(*ENDPOINT))
_UNRESOLVED: Final = (total("upstream.endpoint.count", *ENDPOINT).equals(0.0) & (_ADDRESSES > 0.0)).unless(_UNREADY)
_OF_LISTENERS: Final = largest("listener.upstream", LISTENER, UPSTREAM)
_GONE_ALL_THE_TIME: Final = _OF_LISTENERS & (steady("upstream.endpoint.down", UPSTREAM) >= _ADDRESSES).unless(_answers(UPSTREAM))
"""Listeners for which FramegateUpstreamGone fires. If the upstream was there for a part of the time, that alert may not fire, and
FramegateClientsFail does."""
_GONE_LATELY: Final = _OF_LISTENERS & (longest("upstream.endpoint.down", UPSTREAM, how="sum") >= steady("upstream.endpoint.count", UPSTREAM))
_ANSWERS, _ASKS = (rate("upstream.frame.count", *ENDPOINT, where={DIRECTION: way}) for way in ("receive", "transmit"))
_ANSWERED: Final = total("upstream.frame.count", *ENDPOINT, where={DIRECTION: "receive"})
_ASKED: Final = total("upstream.answer.asked", *ENDPOINT)
_RECENT: Final = total("upstream.answer.recent", *ENDPOINT)
"""Answers of the last 20 to 30 s. (A rate would have those from before the trouble until its window has passed.)"""
_OPEN, _WAITING = total("upstream.request.open", *ENDPOINT), total("upstream.answer.waiting", *ENDPOINT)
_ENOUGH_S: Final = 20.0
"""Clients of Kafka give up after 30 s as a rule, so the oldest request seldom becomes older."""
_LONG_S: Final = 40.0
"""In other protocols a request may wait for news, for 30 s as a rule."""
_MEAN_WAIT: Final = total("upstream.answer.time", *ENDPOINT) / _ANSWERED
_WAITS: Final = (longest("upstream.answer.age", *ENDPOINT) > _LONG_S) & (largest("upstream.answer.age", *ENDPOINT) > 1.0)
_OLD_WAITS: Final = _WAITS.unless(_WAITS < _MEAN_WAIT * 2.0)
_OLD_REQUESTS: Final = (longest("upstream.request.age", *ENDPOINT) > _ENOUGH_S) & (largest("upstream.request.age", *ENDPOINT) > 1.0)
"""Some wait now, and have waited long in the window: clients that give up come again, and wait anew."""
_ANSWERS_ALL: Final = _ANSWERED >= _ASKED * 0.5
"""Endpoints that have answered as a rule until their last answer: what they are sent is meant to be answered. All of Kafka's are."""
_ONE_WAY: Final = (_ANSWERED < _ASKED * 0.5) & (_ASKED >= _WAITING * 4.0)
"""The others, if clients go on without an answer, which those of an endpoint that hangs from the start do not."""
_STUCK_REQUESTS: Final = _OLD_REQUESTS & (_OPEN > _RECENT)
_STUCK_WAITS: Final = (_OLD_WAITS & (_WAITING > _RECENT)) & _ANSWERS_ALL
"""As many wait as get an answer in that time, or more: not one of many only."""
_SOME_WAITS: Final = _OLD_WAITS.unless(_STUCK_WAITS).unless(_ONE_WAY)
_ENDED: Final = rate("upstream.connection.closed", *ENDPOINT)
_GIVEN_UP: Final = rate("upstream.connection.closed", *ENDPOINT, where={ERROR_TYPE: "unanswered"}) > 0.02
_GIVE_UP: Final = ((_GIVEN_UP / _ENDED) > 0.05) & (_GIVEN_UP * _ENOUGH_S > _RECENT * 0.01)
_USUAL_ANSWERS: Final = (_ANSWERED / _ASKED) * _ASKS
"""So many answers a second would come if the endpoint answered the share that it has answered so far: of what has no answer some is always sent."""
_NO_ANSWERS: Final = ((_GIVE_UP > 0.5) & (_GIVEN_UP * (_ENOUGH_S / 2.0) > _RECENT)) & _ANSWERS_ALL
_FEW_ANSWERS: Final = ((_GIVE_UP > 0.5) & (_GIVEN_UP * (_ENOUGH_S * 4.0) > _RECENT)) & ((_ANSWERS < _USUAL_ANSWERS * 0.75) & _ANSWERS_ALL)
"""Each client gets a few answers, as for its login, and then none."""
_SOME_GIVE_UP: Final = (_GIVE_UP & ((_ANSWERS < _USUAL_ANSWERS * 0.95) & _ANSWERS_ALL)).unless(_NO_ANSWERS).unless(_FEW_ANSWERS)
_ALL_GIVE_UP: Final = (_GIVE_UP & (_GIVEN_UP * 4.0 > _ASKS)).unless(_ANSWERS_ALL)
"""Clients of an endpoint that never answers as a rule, if they do not go on: they send it three frames or fewer before they leave."""
_SLOWER: Final = (((rate("upstream.answer.time", *ENDPOINT) / (_ANSWERS > 0.0)) > 5.0) > _MEAN_WAIT * 4.0).unless(
    longest("upstream.answer.age", *ENDPOINT) > _LONG_S  # it counts when its answer comes, in which case the trouble is over
)
_BROKEN: Final = rate("upstream.connection.closed", *ENDPOINT, ERROR_TYPE, where={ERROR_TYPE: ".+", f"!{ERROR_TYPE}": "unanswered"})
_ACCEPTED: Final = rate("connection.accepted", LISTENER)
_CLIENTS: Final = total("connection.active", LISTENER, where={SIDE: "downstream"})
_UPSTREAM_CAUSES: Final = (
    "upstream_refused|upstream_timeout|upstream_closed|peer_reset|wrong_protocol|tls_failed|auth_failed|receive_stalled|send_stalled|"
    "frame_too_large|negative_size"
)
_NOT_CLIENTS: Final = {f"!{SIDE}": "downstream"}
_OUR_CAUSES: Final = f"{_UPSTREAM_CAUSES}|limit|internal|handler_failed"
_OURS: Final = rate("connection.closed", LISTENER, where={CAUSE: f"{_OUR_CAUSES}|processor_died", **_NOT_CLIENTS})
"""Connections that ended for a fault of framegate or of what is behind it."""
_IN_VAIN: Final = rate("connection.closed", LISTENER, where={CAUSE: _OUR_CAUSES, **_NOT_CLIENTS})
"""Those of a listener that still fails: a processor that died took long and good connections with it, and another has its place."""
_RESPONSES: Final = rate("frame.count", LISTENER, where={SIDE: "downstream", DIRECTION: "transmit"})
_ALL_FAIL: Final = ((_ACCEPTED > 0.05) & (_IN_VAIN >= _ACCEPTED * 0.99)) & (_ACCEPTED > _RESPONSES)
_DOOR: Final = {CAUSE: "tls_failed|wrong_protocol|handshake_timeout", f"!{SIDE}": "upstream"}
_NOBODY: Final = rate("connection.closed", LISTENER, where={**_DOOR, CAUSE: f"{_DOOR[CAUSE]}|auth_failed"})
_RECEIVED: Final = {SIDE: "downstream", DIRECTION: "receive"}
_FRAMES, _HOUR_AGO, _DAY_AGO = (rate("frame.count", LISTENER, where=_RECEIVED, ago_s=ago_s) for ago_s in (0, HOUR_S, DAY_S))
_SILENT: Final = (_FRAMES.equals(0.0) & (_HOUR_AGO > 1.0)) & (_DAY_AGO > 1.0)
_ERROR: Final = {ERROR_TYPE: ".+"}
_ATTEMPTS: Final = {f"!{ERROR_TYPE}": "abandoned"}
_CONNECTS: Final = rate("upstream.connect.duration", *ENDPOINT, where=_ATTEMPTS)
_FAILED: Final = rate("upstream.connect.duration", *ENDPOINT, ERROR_TYPE, where={**_ERROR, **_ATTEMPTS})
_LOGINS: Final = rate("authentication.count", LISTENER)
_CLIENT: Final = (LISTENER, PRINCIPAL, CLIENT_ID, CLIENT_ADDRESS)
_EXPORTED, _UNEXPORTED = (rate("telemetry.exports", SIGNAL, where={ERROR_TYPE: error}) for error in ("", ".+"))
_UNREAD: Final = largest("tap.lag", CONSUMER) / largest("tap.limit")
_SLOW: Final = "frame.forward.duration"
_QUICK_APIS: Final = {f"!{API}": "Fetch|JoinGroup|SyncGroup"}
_KAFKA: Final = "kafka.request.duration"
_BUSY: Final = rate("event_loop.time", WORKER, where={STATE: "busy"})
_PENDING: Final = steady("channel.pending", SIDE)
_DAYS: Final = days_left("tls.certificate.not_after", CERTIFICATE, where={f"!{CERTIFICATE}": ".*/crl"})
_LIST_DAYS: Final = days_left("tls.certificate.not_after", CERTIFICATE, where={CERTIFICATE: ".*/crl"})
"""Revocation lists are usually made every few days."""
_LEAST: Final = 0.05
"""Bad events per second that are worth a ticket, if they are also 1 % of all."""
_BROKERS_FAULTS: Final = {ERROR_TYPE: "leader_not_available|not_.*|request_timed_out|coordinator_.*|other"}
_USUAL_ERRORS: Final = {f"!{ERROR_TYPE}": "member_id_required|rebalance_in_progress|fetch_session_id_not_found|invalid_fetch_session_epoch"}
"""Answers to clients that have done nothing wrong, at brokers that have not either."""


def _failing(share: float) -> tuple[Problem, ...]:
    """Of connections of a listener more than this share fails, and in an hour more than 1 % of those that are open."""
    bad = ((_OURS > 0.002) & (_OURS > _CLIENTS * (0.01 / HOUR_S))).unless(_ALL_FAIL)
    return (_problem("Connections of clients fail", ((bad / _ACCEPTED) > share).unless(_GONE_ALL_THE_TIME), "% of the new ones", _CLOSED_AT),)


def _muted_by(cause: str) -> Condition:
    """Channels are muted for this cause, all the time."""
    return steady("channel.muted", where={MUTE_CAUSE: cause}) > 0.0


def _refused(words: str, bad: Condition, everything: Condition, command: str) -> Problem:
    return _problem(words, (bad > _LEAST) & (bad > everything * 0.01), "a second", command)


def _attack(words: str, *, user: str, address: str) -> Problem:
    """Logins fail with wrong credentials; ``user`` and ``address``: ``one`` or ``many``."""
    where = {f"{'!' * (which == 'one')}{label}": "<many>" for label, which in ((PRINCIPAL, user), (CLIENT_ADDRESS, address))}
    where[f"!{ERROR_TYPE}"] = "unavailable"
    return _refused(words, total("client.login.failures", *_CLIENT, where=where), _LOGINS, _LOGIN_ENDS)


def _noisy(words: str, measure: str) -> Problem:
    """One of at least ten clients has more than half of a listener's bytes or frames, unless they are what an upstream does not answer."""
    share = largest("client.share", *_CLIENT, where={MEASURE: measure}) > 0.5
    has_answered = total("upstream.frame.count", UPSTREAM, where={DIRECTION: "receive"}) > 0.0
    waits = _OF_LISTENERS & ((longest("upstream.answer.age", UPSTREAM) > 5.0) & has_answered)
    return _problem(words, (share & (_CLIENTS > 9.0)).unless(waits), "% of all", f"top --sort {measure}_rate")


def _errors(share: float, where: Mapping[str, str]) -> Condition:
    """Of the answers of a broker more than this share is an error."""
    return ((rate("kafka.response.errors", *ENDPOINT, ERROR_TYPE, where=where) > _LEAST) / _ANSWERS) > share


_MOST_ERRORS, _MANY_ERRORS = _errors(0.5, _BROKERS_FAULTS), _errors(0.05, {**_ERROR, **_USUAL_ERRORS})


ALERTS: Final = (
    Alert(
        name="FramegateNotReady",
        severity="critical",
        hold="2m",
        problems=(_problem("A framegate is not ready, and does not drain", _UNREADY.unless(largest("draining") > 0.0), "% ready", "handlers list"),),
    ),
    Alert(
        name="FramegateUpstreamGone",
        severity="critical",
        hold="1m",
        problems=(
            _problem("No endpoint of an upstream can be reached", _GONE & (_ADDRESSES > 0.0), "addresses left out", _UPSTREAMS),
            _problem("The names of an upstream are not resolved", _ADDRESSES.equals(0.0).unless(_UNREADY), "addresses", _UPSTREAMS),
            _problem("No broker of a cluster is known", total("broker.count", UPSTREAM).equals(0.0), "brokers", "brokers list"),
        ),
    ),
    Alert(
        name="FramegateRequestsUnanswered",
        severity="critical",
        hold="30s",
        windows=("2m",),
        problems=(
            _problem("Requests wait long for their answer", _STUCK_REQUESTS, "s the oldest", _UPSTREAMS),
            _problem("Connections wait long for an answer", _STUCK_WAITS, "s the longest", _UPSTREAMS),
            _problem("Most clients of an endpoint give up before it answers", _NO_ANSWERS, "% of those that end", _UPSTREAMS),
            _problem("Most clients of an endpoint give up before it answers", _FEW_ANSWERS, "% of those that end", _UPSTREAMS),
        ),
    ),
    Alert(
        name="FramegateListenerFails",
        severity="critical",
        hold="1m",
        windows=("2m",),
        problems=(
            _problem("Every connection of a listener fails", _ALL_FAIL.unless(_GONE_LATELY), "a second", _CLOSED_AT),
            _problem(
                "Nobody gets in where clients came before", ((_ACCEPTED > _LEAST) & (_NOBODY >= _ACCEPTED * 0.99)) & _SILENT, "a second", _CLOSED_AT
            ),
        ),
    ),
    Alert(name="FramegateClientsFail", severity="critical", hold="10m", windows=("1h", "2m"), problems=_failing(0.0144)),
    Alert(
        name="FramegateUpstreamFails",
        severity="critical",
        problems=(_problem("Most answers of an endpoint are errors", _MOST_ERRORS, "% of its answers", _UPSTREAMS),),
    ),
    Alert(
        name="FramegateCertificateEnds",
        severity="critical",
        hold="0s",
        problems=(
            _problem("A certificate ends within three days", _DAYS < 3.0, "days left", "certificates list"),
            _problem("A revocation list ends within a day", _LIST_DAYS < 1.0, "days left", "certificates list"),
        ),
    ),
    Alert(
        name="FramegateTapForgets",
        severity="critical",
        problems=(_problem("The tap's budget will pass what a reader has yet to read", _UNREAD > 0.8, "% of the budget", _READERS),),
    ),
    Alert(
        name="FramegateTap",
        severity="critical",
        hold="1m",
        windows=("2m",),
        problems=(_problem("Connections stand still until the tap can write again", _muted_by("tap"), "channels", "channels list"),),
    ),
    Alert(name="FramegateClientsFail", severity="warning", hold="10m", windows=("6h", "5m"), problems=_failing(0.006)),
    Alert(
        name="FramegateCertificateEnds",
        severity="warning",
        hold="1h",
        problems=(_problem("A certificate ends within two weeks", (_DAYS >= 3.0) < 14.0, "days left", "certificates list"),),
    ),
    Alert(
        name="FramegateRequestsUnanswered",
        severity="warning",
        windows=("2m",),
        problems=(
            _problem("Some requests wait long for their answer", _OLD_REQUESTS.unless(_STUCK_REQUESTS), "s the oldest", _UPSTREAMS),
            _problem("Some connections wait long for an answer", _SOME_WAITS, "s the longest", _UPSTREAMS),
            _problem("Clients give up before an endpoint answers", _SOME_GIVE_UP, "% of those that end", _UPSTREAMS),
            _problem("Clients give up before an endpoint answers", _ALL_GIVE_UP, "% of those that end", _UPSTREAMS),
        ),
    ),
    Alert(
        name="FramegateUpstreamFails",
        severity="warning",
        problems=(
            _problem("Connections to an endpoint fail", ((_FAILED > 0.01) / _CONNECTS) > 0.05, "% of the attempts", _UPSTREAMS),
            _problem("Connections end by a fault of their endpoint", ((_BROKEN > 0.01) / _ENDED) > 0.05, "% of those that end", _UPSTREAMS),
            _problem("Many answers of an endpoint are errors", _MANY_ERRORS.unless(_MOST_ERRORS), "% of its answers", _UPSTREAMS),
            _problem("Half of an upstream's endpoints are left out", _HALF_DOWN, "addresses left out", _UPSTREAMS),
            _problem("An endpoint is left out", _LEFT_OUT, "addresses left out", _UPSTREAMS),
            _problem("The name of an endpoint is not resolved", _UNRESOLVED, "addresses", _UPSTREAMS),
            _problem(
                "Clients cannot reach a broker: framegate has no port for it",
                total("broker.count", UPSTREAM, BROKER, where={STATE: "no_port"}) > 0.0,
                "brokers",
                "brokers list",
            ),
        ),
    ),
    Alert(
        name="FramegateUpstreamFails",
        severity="warning",
        hold="0s",  # it is counted once a connection
        problems=(_problem("Answers do not belong to requests", lately("kafka.pairing_lost", LISTENER), "connections", _CLOSED_AT),),
    ),
    Alert(
        name="FramegateClientsRefused",
        severity="warning",
        problems=(
            _refused(
                "Connections are refused at accept",
                rate("connection.rejected", LISTENER, REASON, where={f"!{REASON}": "draining"}),
                _ACCEPTED,
                "limits get --node",
            ),
            _refused(
                "Clients fail at the handshake, or speak another protocol",
                rate("connection.closed", LISTENER, CAUSE, where=_DOOR),
                _ACCEPTED,
                _CLOSED_BY,
            ),
            _refused(
                "Logins of clients are refused",
                rate("authentication.count", LISTENER, ERROR_TYPE, where={ERROR_TYPE: "denied|mechanism|protocol|unavailable"}),
                _LOGINS,
                _LOGIN_ENDS,
            ),
            _refused(
                "Frames of clients are refused",
                rate("frame.rejected", LISTENER, REASON, where={SIDE: "downstream"}),
                _ACCEPTED,  # each ends its connection, and its client comes again
                _CLOSED_AT,
            ),
        ),
    ),
    Alert(
        name="FramegateLoginsFail",
        severity="warning",
        problems=(
            _attack("Logins of one user fail, from one address", user="one", address="one"),
            _attack("Logins of one user fail, from many addresses", user="one", address="many"),
            _attack("Logins of many users fail, from one address", user="many", address="one"),
            _attack("Logins of many users fail, from many addresses", user="many", address="many"),
        ),
    ),
    Alert(
        name="FramegateNoTraffic",
        severity="warning",
        windows=("10m",),
        problems=(_problem("Nothing passes where requests came before", _SILENT, "requests a second", "channels list"),),
    ),
    Alert(
        name="FramegateAccept",
        severity="warning",
        problems=(
            _problem("Connections cannot be accepted", grown("accept.errors", LISTENER, ERROR_TYPE), "errors", "doctor"),
            _problem(
                "Descriptors are nearly used up",
                (largest("process.unix.file_descriptor.count", PROCESS) / largest("framegate.process.file_descriptor.limit", PROCESS)) > 0.9,
                "% of the limit",
                "doctor",
            ),
            _problem("Connections wait for a limit", rate("accept.limited.time", LISTENER, REASON) > 0.1, "% of the time", "limits get --node"),
            _problem("Connections wait for a processor", rate("accept.blocked.time", LISTENER) > 0.1, "% of the time", "pool get"),
            _problem(
                "Far more connections come than an hour ago",
                (_ACCEPTED > 50.0).unless(rate("connection.accepted", LISTENER, ago_s=HOUR_S) > _ACCEPTED * 0.25),
                "in a second",
                "channels list --limit 50",
            ),
        ),
    ),
    Alert(
        name="FramegateSlow",
        severity="warning",
        problems=(
            _problem(
                "Frames take longer than 10 ms to pass",
                ((rate(_SLOW, LISTENER, above=0.01) > _LEAST) / rate(_SLOW, LISTENER)) > 0.144,
                "% of them",
                "channels list",
            ),
            _problem(
                "Kafka requests take longer than 1 s",
                ((rate(_KAFKA, LISTENER, API, where=_QUICK_APIS, above=1.0) > _LEAST) / rate(_KAFKA, LISTENER, API, where=_QUICK_APIS)) > 0.144,
                "% of them",
                _UPSTREAMS,
            ),
            _problem("Answers take far longer than before", _SLOWER, "s on average", _UPSTREAMS),
        ),
    ),
    Alert(
        name="FramegateCpuShort",
        severity="warning",
        problems=(
            _problem(
                "The container is throttled",
                (rate("container.cpu.throttled.periods") / rate("container.cpu.periods")) > 0.25,
                "% of the periods",
                "doctor",
            ),
            _problem("A process waits for a CPU", rate("framegate.process.run_delay", PROCESS) > 0.25, "% of the time", "doctor"),
            _problem("A processor has no time left", (_BUSY / rate("event_loop.time", WORKER)) > 0.9, "% of the time busy", "pool get"),
        ),
    ),
    Alert(
        name="FramegateMemoryShort",
        severity="warning",
        problems=(
            _problem("Clients wait for memory", rate("memory_pool.depleted.time") > 0.05, "processors, all the time", "pool get --top 10"),
            _problem("The memory is nearly used up", (total("memory.usage") / total("memory.limit")) > 0.9, "% of the limit", "status"),
        ),
    ),
    Alert(
        name="FramegateTap",
        severity="warning",
        hold="1m",
        problems=(
            _problem(
                "The tap loses frames",
                rate("tap.dropped", REASON, where={f"!{REASON}": "sampled|undelivered"}) > 0.0,  # an undelivered frame reached nobody
                "frames a second",
                "tap verify /var/lib/framegate/tap",
            ),
            _problem("The tap's disk will be full within six hours", smallest("tap.disk.time_left") < 21_600.0, "s left", "doctor"),
            _problem("The tap's disk is nearly full", (total("tap.disk.free") / total("tap.disk.size")) < 0.05, "% free", "doctor"),
            _problem("A reader of the tap is far behind", largest("tap.lag.time", CONSUMER) > 600.0, "s", _READERS),
            _problem("A reader's file in the tap cannot be read", total("tap.consumer.unreadable") > 0.0, "files", _READERS),
        ),
    ),
    Alert(
        name="FramegateHandlers",
        severity="warning",
        hold="0s",
        windows=("10m",),
        problems=(
            _problem("A handler process was started again", lately("handler.restarts", REASON), "restarts in 10 minutes", "handlers list"),
            _problem(
                "A handler raises", grown("handler.requests", LISTENER, where={"framegate.handler.action": "failed"}), "frames", "handlers list"
            ),
            _problem(
                "The memory of a handler process grows",
                (slope("process.memory.usage", PROCESS, where={PROCESS: "handler-.*"}) / _MIB) > 0.25,
                "MiB a second",
                "handlers list",
            ),
        ),
    ),
    Alert(
        name="FramegateBroken",
        severity="warning",
        hold="0s",
        problems=(
            _problem(
                "A processor was started again",
                lately("worker.restarts", REASON),
                "restarts in 10 minutes",
                f"{_CLOSED} --filter cause=processor_died",
            ),
            _problem("The kernel killed a process for memory", lately("container.memory.kills"), "processes", "doctor"),
            _problem("A processor caught an error of its own", lately("processor.errors", PLACE), "errors", f"{_CLOSED} --filter cause=internal"),
            _problem("A part of the control process failed", lately("task.failures", TASK), "failures", "status"),
        ),
    ),
    Alert(
        name="FramegateControl",
        severity="warning",
        hold="0s",
        windows=("10m",),
        problems=(
            _problem("A file that was replaced was not taken", lately("reload.count", FILE_KIND, where=_ERROR), "files", "certificates list"),
            _problem("Log rows are dropped: standard output cannot be written", grown("log.dropped"), "rows", "status"),
            _problem("Changes are refused: they cannot be audited", grown("audit.failures"), "changes", "status"),
            _problem("The control process stood still", lately("control.lag.time") > 3.0, "s in 10 minutes", "doctor"),
            _problem("The collector does not take what is exported", (_UNEXPORTED > 0.0).unless(_EXPORTED > 0.0), "exports a second", "doctor"),
            _problem(
                "A drain does not end", (largest("drain.time") > 300.0) & (total("connection.active") > 0.0), "s, and not empty", "channels list"
            ),
        ),
    ),
    Alert(
        name="FramegateNoisyClient",
        severity="info",
        windows=("2m",),
        problems=(
            _noisy("One client has more than half of a listener's bytes", "bytes"),
            _noisy("One client has more than half of a listener's frames", "frames"),
        ),
    ),
    Alert(
        name="FramegateHeldBack",
        severity="info",
        hold="10m",
        problems=(
            _problem("Connections are muted by an operator", _muted_by("admin"), "channels", "channels list"),
            _problem("A quota holds back most clients", (rate("throttle.time", LISTENER) / _CLIENTS) > 0.5, "% of them", "limits get"),
            _problem(
                "Peers do not take what is sent to them",
                (_PENDING & (_PENDING > 0.0)) > total("connection.active") * 0.02,
                "channels",
                "pool get --top 10",
            ),
        ),
    ),
)
"""The most severe first."""


@dataclass(frozen=True, slots=True)
class Found:
    """A problem at one place: the alert's severity, the problem, the labels of the place, and how much."""

    severity: Severity
    problem: Problem
    labels: Mapping[str, str]
    value: float

    def __str__(self) -> str:
        command, place = self.problem.command, " ".join(filter(None, self.labels.values()))
        for label, text in self.labels.items():
            command = command.replace(f"{{{label}}}", text)
        value = min(self.value, 1.0) * 100 if self.problem.is_share else self.value
        return f"{self.severity}: {self.problem.words}{f' ({place})' if place else ''}: {value:.3g} {self.problem.measure}; `{command}`"


class Watch:
    """Looks for problems in this framegate, every ``STEP_S`` seconds and when it is asked, also if no metrics are exported."""

    def __init__(self) -> None:
        self._history = History(part for alert in ALERTS for problem in alert.problems for part in problem.condition.parts)
        self._read: Callable[[], Any] | None = None
        self._looked_s = -math.inf

    def begin(self, read: Callable[[], Any]) -> None:
        """``read`` returns a ``telemetry.fold.Folded``. Any thread."""
        self._read = read

    async def look(self) -> None:
        """Take a sample."""
        if self._read is not None:
            read, self._looked_s = self._read, time.monotonic()
            sample = await asyncio.to_thread(lambda: self._history.sample(values_of(read())))  # up to 0.1 s, with many listeners and processors
            self._history.add(self._looked_s, sample)

    async def found(self) -> list[Found]:
        """The problems now, the worst first; one that two alerts have is there once."""
        if time.monotonic() - self._looked_s >= FRESH_S:
            await self.look()
        found: dict[tuple[str, tuple[str, ...]], Found] = {}
        for alert in ALERTS:
            for problem in alert.problems:
                for values, value in sorted(problem.condition.judge(self._history).items()):
                    if not math.isnan(value):
                        one = Found(alert.severity, problem, dict(zip(problem.condition.by, values, strict=True)), value)
                        found.setdefault((problem.words, values), one)
        return list(found.values())
