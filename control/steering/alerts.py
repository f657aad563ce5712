"""The alerts: their problems in words, conditions, and the commands to type.

Pages (critical) are for what clients of ours suffer now, or will soon for certain. What strangers do (handshakes and logins that fail) is a ticket.
"""

from dataclasses import dataclass
from typing import Final, Literal

from framegate.control.steering import failures
from framegate.control.steering.condition import Condition, grown, largest, lately, longest, rate, slope, smallest, total
from framegate.proxy.cells.metrics import (
    API,
    BROKER,
    CAUSE,
    CLIENT_ADDRESS,
    CONSUMER,
    DIRECTION,
    ERROR_TYPE,
    FILE_KIND,
    LISTENER,
    MEASURE,
    PLACE,
    PRINCIPAL,
    REASON,
    SIDE,
    STATE,
    TASK,
    UPSTREAM,
    WORKER,
)
from framegate.proxy.cells.standard_metrics import PROCESS

Severity = Literal["critical", "warning", "info"]
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem."""

    words: str  # what is wrong
    condition: Condition  # where it is true there is the problem; its labels say where, its value how much
    measure: str  # the unit of that value; with ``%`` at its beginning the value is a share, and is shown as a percentage, at most 100
    command: str  # where to look first; ``{framegate.cause}`` is the value of that label

    @property
    def is_share(self) -> bool:
        return self.measure.startswith("%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Problems with one remedy, which is a section of the runbook."""

    name: str  # of the alert, and of the section
    severity: Severity
    problems: tuple[Problem, ...]
    hold: str  # how long it must be true before the alert fires, a duration of Prometheus
    windows: tuple[str, ...]  # the ranges of rates; it must be true in each of them


def _alert(name: str, severity: Severity, hold: str, windows: tuple[str, ...], *problems: Problem) -> Alert:
    return Alert(name=name, severity=severity, problems=problems, hold=hold, windows=windows)


def _problem(words: str, condition: Condition, measure: str, command: str) -> Problem:
    return Problem(words=words, condition=condition, measure=measure, command=f"framegate {command}")


_UPSTREAMS, _CLOSED, _READERS = "upstreams list", "channels list --closed", "tap consumers list /var/lib/framegate/tap"
_CLOSED_BY: Final = f"{_CLOSED} --filter cause={{{CAUSE}}}"
_CLOSED_AT: Final = f"{_CLOSED} --filter listener={{{LISTENER}}}"
_LOGIN_ENDS: Final = f"{_CLOSED} --filter cause=auth_failed"
_NOBODY: Final = "Nobody gets in where clients came before"


def _failing(share: float) -> tuple[Problem, ...]:
    """Of connections of a listener more than this share fails, and in an hour more than 1 % of those that are open."""
    bad = ((failures.OURS > 0.002) & (failures.OURS > failures.CLIENTS * (0.01 / failures.HOUR_S))).unless(failures.ALL_FAIL)
    return (
        _problem(
            "Connections of clients fail", ((bad / failures.CLOSED) > share).unless(failures.GONE_ALL_THE_TIME), "% of those that end", _CLOSED_AT
        ),
    )


def _refused(words: str, bad: Condition, everything: Condition, command: str) -> Problem:
    return _problem(words, (bad > failures.LEAST) & (bad > everything * 0.01), "a second", command)


def _attack(words: str, *, user: str, address: str) -> Problem:
    """Logins fail with wrong credentials; ``user`` and ``address``: ``one`` or ``many``."""
    where = {f"{'!' * (which == 'one')}{label}": "<many>" for label, which in ((PRINCIPAL, user), (CLIENT_ADDRESS, address))}
    where[f"!{ERROR_TYPE}"] = "unavailable"
    return _refused(words, total("client.login.failures", *failures.CLIENT, where=where), failures.LOGINS, _LOGIN_ENDS)


def _noisy(words: str, measure: str) -> Problem:
    """One client of many has more than half of a listener's bytes or frames, unless they are what an upstream does not answer."""
    share = largest("client.share", *failures.CLIENT, where={MEASURE: measure}) > 0.5
    has_answered = total("upstream.frame.count", UPSTREAM, where={DIRECTION: "receive"}) > 0.0
    waits = failures.OF_LISTENERS & ((longest("upstream.answer.age", UPSTREAM) > 5.0) & has_answered)
    return _problem(words, share.unless(waits), "% of all", f"top --sort {measure}_rate")


# fmt: off
ALERTS: Final = (
    _alert("FramegateNotReady", "critical", "2m", ("5m",),
        _problem("A framegate is not ready, and does not drain", failures.UNREADY.unless(largest("draining") > 0.0), "% ready", "handlers list")),
    _alert("FramegateUpstreamGone", "critical", "1m", ("5m",),
        _problem("No endpoint of an upstream can be reached", failures.GONE, "addresses left out", _UPSTREAMS),
        _problem("The names of an upstream are not resolved", failures.NAMELESS, "addresses", _UPSTREAMS),
        _problem("No broker of a cluster is known", total("broker.count", UPSTREAM).equals(0.0), "brokers", "brokers list")),
    _alert("FramegateRequestsUnanswered", "critical", "30s", ("2m",),
        _problem("Requests wait long for their answer", failures.STUCK_REQUESTS, "s the oldest", _UPSTREAMS),
        _problem("No request of an API is answered", failures.STUCK_API, "connections wait", "channels list"),
        _problem("Connections wait long for an answer", failures.STUCK_WAITS, "s the longest", _UPSTREAMS),
        _problem("An endpoint does not read what it is sent", failures.MOST_STALLED, "connections", _UPSTREAMS),
        _problem("Most clients of an endpoint give up before it answers", failures.NO_ANSWERS, "% of those that end", _UPSTREAMS),
        _problem("Most clients of an endpoint give up before it answers", failures.FEW_ANSWERS, "% of those that end", _UPSTREAMS)),
    _alert("FramegateListenerFails", "critical", "1m", ("2m",),
        _problem("Every connection of a listener fails", failures.ALL_FAIL.unless(failures.GONE_LATELY), "a second", _CLOSED_AT),
        _problem(_NOBODY, failures.NOBODY_LONG, "a second", _CLOSED_AT)),
    _alert("FramegateListenerFails", "critical", "3m", ("2m",),  # a scanner may come in the pause between two clients
        _problem(_NOBODY, failures.NOBODY_NOW, "a second", _CLOSED_AT)),
    _alert("FramegateClientsFail", "critical", "10m", ("1h", "2m"), *_failing(0.0144)),
    _alert("FramegateUpstreamFails", "critical", "5m", ("5m",),
        _problem("Most answers of an endpoint are errors", failures.MOST_ERRORS, "% of its answers", _UPSTREAMS)),
    _alert("FramegateCertificateEnds", "critical", "0s", ("5m",),
        _problem("A certificate ends very soon", failures.ENDS_NOW, "days left", "certificates list"),
        _problem("A revocation list ends very soon", failures.LIST_ENDS, "days left", "certificates list")),
    _alert("FramegateTapForgets", "critical", "5m", ("5m",),
        _problem("The tap's budget will pass what a reader has yet to read", failures.UNREAD > 0.8, "% of the budget", _READERS)),
    _alert("FramegateTap", "critical", "1m", ("2m",),
        _problem("Connections stand still until the tap can write again", failures.muted_by("tap"), "channels", "channels list")),
    _alert("FramegateClientsFail", "warning", "10m", ("6h", "5m"), *_failing(0.006)),
    _alert("FramegateCertificateEnds", "warning", "1h", ("5m",),
        _problem("A certificate ends soon", failures.ENDS_SOON.unless(failures.ENDS_NOW), "days left", "certificates list")),
    _alert("FramegateRequestsUnanswered", "warning", "5m", ("2m",),
        _problem("Some requests wait long for their answer", failures.OLD_REQUESTS.unless(failures.STUCK_REQUESTS), "s the oldest", _UPSTREAMS),
        _problem("Some connections wait long for an answer", failures.SOME_WAITS, "s the longest", _UPSTREAMS),
        _problem("Nothing is answered where requests were answered before", failures.STOPPED, "frames sent a second", _UPSTREAMS),
        _problem("Answers are missing that came before", failures.LOST, "% of them", _UPSTREAMS),
        _problem("An endpoint does not read what it is sent on some connections", failures.SOME_STALLED, "connections", _UPSTREAMS),
        _problem("Clients give up before an endpoint answers", failures.SOME_GIVE_UP, "% of those that end", _UPSTREAMS),
        _problem("Clients give up before an endpoint answers", failures.ALL_GIVE_UP, "% of those that end", _UPSTREAMS)),
    _alert("FramegateUpstreamFails", "warning", "5m", ("5m",),
        _problem("Connections to an endpoint fail", ((failures.FAILED > 0.01) / failures.CONNECTS) > 0.05, "% of the attempts", _UPSTREAMS),
        _problem("Connections end by a fault of their endpoint", ((failures.BROKEN > 0.01) / failures.ENDED) > 0.05, "% of those that end",
            _UPSTREAMS),
        _problem("Many answers of an endpoint are errors", failures.MANY_ERRORS.unless(failures.MOST_ERRORS), "% of its answers", _UPSTREAMS),
        _problem("Half of an upstream's endpoints are left out", failures.HALF_DOWN, "addresses left out", _UPSTREAMS),
        _problem("An endpoint is left out", failures.LEFT_OUT, "addresses left out", _UPSTREAMS),
        _problem("The name of an endpoint is not resolved", failures.UNRESOLVED, "addresses", _UPSTREAMS),
        _problem("Clients cannot reach a broker: framegate has no port for it",
            total("broker.count", UPSTREAM, BROKER, where={STATE: "no_port"}) > 0.0, "brokers", "brokers list")),
    _alert("FramegateUpstreamFails", "warning", "0s", ("5m",),  # it is counted once a connection
        _problem("Answers do not belong to requests", lately("kafka.pairing_lost", LISTENER), "connections", _CLOSED_AT)),
    _alert("FramegateClientsRefused", "warning", "5m", ("5m",),
        _refused("Connections are refused at accept", rate("connection.rejected", LISTENER, REASON, where={f"!{REASON}": "draining"}),
            failures.ACCEPTED, "limits get --node"),
        _refused("Clients fail at the handshake, or speak another protocol", rate("connection.closed", LISTENER, CAUSE, where=failures.DOOR),
            failures.ACCEPTED, _CLOSED_BY),
        _refused("Logins of clients are refused",
            rate("authentication.count", LISTENER, ERROR_TYPE, where={ERROR_TYPE: "denied|mechanism|protocol|unavailable"}), failures.LOGINS,
            _LOGIN_ENDS),
        _refused("Clients are refused that may not connect", failures.NOT_ALLOWED, failures.ACCEPTED, _CLOSED_BY),
        _refused("Frames of clients are refused", rate("frame.rejected", LISTENER, REASON, where={SIDE: "downstream"}), failures.ACCEPTED,
            _CLOSED_AT),
        _problem("Rules refuse most requests of an API", failures.MOST_REFUSED, "a second", f"kafka-rules get --listener {{{LISTENER}}}")),
    _alert("FramegateLoginsFail", "warning", "5m", ("5m",),
        _attack("Logins of one user fail, from one address", user="one", address="one"),
        _attack("Logins of one user fail, from many addresses", user="one", address="many"),
        _attack("Logins of many users fail, from one address", user="many", address="one"),
        _attack("Logins of many users fail, from many addresses", user="many", address="many")),
    _alert("FramegateNoTraffic", "warning", "5m", ("10m",),
        _problem("Nothing passes where requests came before", failures.SILENT, "requests a second", "channels list")),
    _alert("FramegateAccept", "warning", "5m", ("5m",),
        _problem("Connections cannot be accepted", grown("accept.errors", LISTENER, ERROR_TYPE), "errors", "doctor"),
        _problem("Descriptors are nearly used up", (largest("process.unix.file_descriptor.count", PROCESS)
            / largest("framegate.process.file_descriptor.limit", PROCESS)) > 0.9, "% of the limit", "doctor"),
        _problem("Connections wait for a limit", rate("accept.limited.time", LISTENER, REASON) > 0.1, "% of the time", "limits get --node"),
        _problem("Connections wait for a processor", rate("accept.blocked.time", LISTENER) > 0.1, "% of the time", "pool get"),
        _problem("Far more connections come than an hour ago",
            (failures.ACCEPTED > 50.0) & (rate("connection.accepted", LISTENER, ago_s=failures.HOUR_S) < failures.ACCEPTED * 0.25), "in a second",
            "channels list --limit 50")),
    _alert("FramegateSlow", "warning", "5m", ("5m",),
        _problem("Frames take longer than 10 ms to pass",
            ((rate(failures.SLOW, LISTENER, above=0.01) > failures.LEAST) / rate(failures.SLOW, LISTENER)) > 0.144, "% of them", "channels list"),
        _problem("Kafka requests take longer than 1 s",
            ((rate(failures.KAFKA, LISTENER, API, where=failures.QUICK_APIS, above=1.0) > failures.LEAST)
            / rate(failures.KAFKA, LISTENER, API, where=failures.QUICK_APIS)) > 0.144, "% of them", _UPSTREAMS),
        _problem("Frames wait longer than 1 s for their handler",
            ((rate("handler.queue.time", LISTENER, above=1.0) > failures.LEAST) / rate("handler.queue.time", LISTENER)) > 0.144, "% of them",
            "handlers list"),
        _problem("Answers take far longer than before", failures.SLOWER, "s on average", _UPSTREAMS)),
    _alert("FramegateCpuShort", "warning", "5m", ("5m",),
        _problem("The container is throttled", (rate("container.cpu.throttled.periods") / rate("container.cpu.periods")) > 0.25, "% of the periods",
            "doctor"),
        _problem("A process waits for a CPU", rate("framegate.process.run_delay", PROCESS) > 0.25, "% of the time", "doctor"),
        _problem("A processor has no time left", (failures.BUSY / rate("event_loop.time", WORKER)) > 0.9, "% of the time busy", "pool get")),
    _alert("FramegateMemoryShort", "warning", "5m", ("5m",),
        _problem("Clients wait for memory", rate("memory_pool.depleted.time") > 0.05, "processors, all the time", "pool get --top 10"),
        _problem("The memory is nearly used up", (total("memory.usage") / total("memory.limit")) > 0.9, "% of the limit", "status")),
    _alert("FramegateTap", "warning", "1m", ("5m",),
        _problem("The tap loses frames", rate("tap.dropped", REASON, where={f"!{REASON}": "sampled|undelivered"}) > 0.0, "frames a second",
            "tap verify /var/lib/framegate/tap"),
        _problem("The tap's disk will be full within six hours", smallest("tap.disk.time_left") < 21_600.0, "s left", "doctor"),
        _problem("The tap's disk is nearly full", (total("tap.disk.free") / total("tap.disk.size")) < 0.05, "% free", "doctor"),
        _problem("A reader of the tap is far behind", largest("tap.lag.time", CONSUMER) > 600.0, "s", _READERS),
        _problem("The tap's log is not shipped", total("tap.ship.failing") > 0.0, "shippers", "tap ls /var/lib/framegate/tap"),
        _problem("A reader's file in the tap cannot be read", total("tap.consumer.unreadable") > 0.0, "files", _READERS)),
    _alert("FramegateHandlers", "warning", "0s", ("10m",),
        _problem("A handler process was started again", lately("handler.restarts", REASON), "restarts in 10 minutes", "handlers list"),
        _problem("A handler raises", grown("handler.requests", LISTENER, where={"framegate.handler.action": "failed"}), "frames", "handlers list"),
        _problem("The memory of a handler process grows", (slope("process.memory.usage", PROCESS, where={PROCESS: "handler-.*"}) / _MIB) > 0.25,
            "MiB a second", "handlers list")),
    _alert("FramegateBroken", "warning", "0s", ("5m",),
        _problem("A processor was started again", lately("worker.restarts", REASON), "restarts in 10 minutes",
            f"{_CLOSED} --filter cause=processor_died"),
        _problem("A processor stood still", lately("worker.lag.time", WORKER) > 3.0, "s in 10 minutes", "pool get"),
        _problem("The kernel killed a process for memory", lately("container.memory.kills"), "processes", "doctor"),
        _problem("A processor caught an error of its own", lately("processor.errors", PLACE), "errors", f"{_CLOSED} --filter cause=internal"),
        _problem("A part of the control process failed", lately("task.failures", TASK), "failures", "status")),
    _alert("FramegateControl", "warning", "0s", ("10m",),
        _problem("A file that was replaced was not taken", lately("reload.count", FILE_KIND, where=failures.ERROR), "files", "certificates list"),
        _problem("Log rows are dropped: standard output cannot be written", grown("log.dropped"), "rows", "status"),
        _problem("Changes are refused: they cannot be audited", grown("audit.failures"), "changes", "status"),
        _problem("The control process stood still", lately("control.lag.time") > 3.0, "s in 10 minutes", "doctor"),
        _problem("The collector does not take what is exported", (failures.UNEXPORTED > 0.0).unless(failures.EXPORTED > 0.0), "exports a second",
            "doctor"),
        _problem("A drain does not end", (largest("drain.time") > 300.0) & (total("connection.active") > 0.0), "s, and not empty", "channels list")),
    _alert("FramegateNoisyClient", "info", "5m", ("2m",),
        _noisy("One client has more than half of a listener's bytes", "bytes"),
        _noisy("One client has more than half of a listener's frames", "frames")),
    _alert("FramegateHeldBack", "info", "10m", ("5m",),
        _problem("Connections are muted by an operator", failures.muted_by("admin"), "channels", "channels list"),
        _problem("A quota holds back most clients", (rate("throttle.time", LISTENER) / failures.CLIENTS) > 0.5, "% of them", "limits get"),
        _problem("Peers do not take what is sent to them", (failures.PENDING > 0.0) > total("connection.active", LISTENER, SIDE) * 0.02, "channels",
            "pool get --top 10")),
)  # the most severe first
# fmt: on
