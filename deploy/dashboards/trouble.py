"""The list of problems, the worst first, for the first panel of the first dashboard and for the alerts."""

from typing import Final

from dashboards.problems import Budget, Problem
from dashboards.promql import WHO, either, grown, per_second, share_slower, total

__all__ = ["PROBLEMS"]

REFUSED: Final = 0.001
"""The allowed share of refused connections, handshakes, logins and frames in a month."""
SLOW: Final = 0.01
"""The allowed share of slow frames and requests in a month."""
AT: Final = f"{WHO}, framegate_listener"
DOOR: Final = 'framegate_cause=~"tls_failed|wrong_protocol|handshake_timeout"'
READY: Final = total(either("framegate_ready", "ratio", '{@, framegate_probe="readiness"}'), WHO)
DRAINING: Final = f"max by ({WHO}) ({either('framegate_draining', 'ratio')})"
LATE_FRAMES, SAMPLED_FRAMES = share_slower("0.01", "framegate_frame_forward_duration_seconds", "{@l}", AT)
LATE_REQUESTS, KAFKA_REQUESTS = share_slower(
    "1", "framegate_kafka_request_duration_seconds", '{@l, framegate_kafka_api!~"Fetch|JoinGroup|SyncGroup"}', AT
)

ACCEPTED: Final = per_second("framegate_connection_accepted_total{@l}", AT)
TURNED_AWAY: Final = per_second('framegate_connection_rejected_total{@l, framegate_reason!="draining"}', AT)
NO_HANDSHAKE: Final = per_second(f"framegate_connection_closed_total{{@l, {DOOR}}}", AT)
NO_LOGIN: Final = per_second('framegate_authentication_count_total{@l, error_type!=""}', AT)
LOGINS: Final = per_second("framegate_authentication_count_total{@l}", AT)
NO_FRAME: Final = per_second("framegate_frame_rejected_total{@l}", AT)
FRAMES: Final = per_second('framegate_frame_count_total{@l, network_io_direction="receive"}', AT)
LOST: Final = 'framegate_tap_dropped_total{@, framegate_reason!="sampled"}'
FAILED: Final = per_second('framegate_telemetry_exports_total{@, error_type!=""}', f"{WHO}, framegate_signal")
PASSED: Final = per_second('framegate_telemetry_exports_total{@, error_type=""}', f"{WHO}, framegate_signal")
DOWN: Final = total("framegate_upstream_endpoint_down{@}", f"{WHO}, framegate_upstream")
ADDRESSES: Final = total("framegate_upstream_endpoint_count{@}", f"{WHO}, framegate_upstream")
BROKERS: Final = total("framegate_broker_count{@}", f"{WHO}, framegate_upstream")
NO_PORT: Final = total('framegate_broker_count{@, framegate_state="no_port"}', f"{WHO}, framegate_upstream")
FOR_PEERS: Final = f"sum by ({WHO}) (min_over_time(framegate_channel_pending{{@}}[@]))"
BUSY: Final = per_second('framegate_event_loop_time_seconds_total{@, framegate_state="busy"}', f"{WHO}, framegate_worker")
LOOP: Final = per_second("framegate_event_loop_time_seconds_total{@}", f"{WHO}, framegate_worker")
UNAVAILABLE: Final = 'rpc_server_call_duration_seconds_count{@, rpc_method=~"framegate.*", error_type="UNAVAILABLE"}'
DAYS: Final = f"(min by ({WHO}, framegate_certificate) (framegate_tls_certificate_not_after_seconds{{@}}) - time()) / 86400"
UNREAD: Final = f"max by ({WHO}, framegate_consumer) (framegate_tap_lag_bytes{{@}})"
LISTENER: Final = ("framegate_listener",)
SECONDS: Final = "{{ $value | humanizeDuration }}"
PERCENT: Final = "{{ $value | humanizePercentage }}"


def _refusal(alert: str, words: str, bad: str, everything: str) -> Problem:
    budget = Budget(bad=bad, all=everything, share=REFUSED)
    return Problem(alert=alert, words=words, measure="in a second", condition=f"{bad} > 0", severity="warning", where=LISTENER, budget=budget)


def _slowness(alert: str, words: str, late: str, everything: str) -> Problem:
    budget = Budget(bad=late, all=everything, share=SLOW)
    condition = f"{late} / {everything} > {14.4 * SLOW:.12g}"
    return Problem(alert=alert, words=words, measure="share of them", condition=condition, severity="warning", where=LISTENER, budget=budget)


def _counted(alert: str, words: str, measure: str, counter: str, *where: str) -> Problem:
    """Something that should never be counted: one event is enough, and the alert lasts for ten minutes."""
    condition = grown(counter, ", ".join((WHO, *where)))
    return Problem(alert=alert, words=words, measure=measure, condition=condition, severity="warning", where=where, hold="0s", window="10m")


_GONE: Final = (
    Problem(
        alert="FramegateAbsent",
        words="Nothing is heard from framegate",
        measure="no series at all",
        told="there are no series of it at all, of any node",
        condition="absent(framegate_config_revision{@})",
        severity="critical",
        hold="10m",
    ),
    Problem(
        alert="FramegateDown",
        words="A framegate does not answer its scrape",
        measure="is its target",
        told="`up` is {{ $value }}, and it was there within the hour",
        condition="up{@} == 0 and on (job, instance) max_over_time(framegate_config_revision{@}[1h])",
        severity="critical",
        hold="2m",
    ),
    Problem(
        alert="FramegateNotReady",
        words="A framegate is not ready, and does not drain",
        measure="ready",
        told="{{ $value }} of it is ready",
        condition=f"{READY} == 0 unless {DRAINING} > 0",
        severity="critical",
        hold="2m",
    ),
    Problem(
        alert="FramegateUpstreamGone",
        words="No address of an upstream can be reached",
        measure="addresses left out",
        condition=f"{DOWN} >= {ADDRESSES} > 0",
        severity="critical",
        where=("framegate_upstream",),
        hold="1m",
    ),
    Problem(
        alert="FramegateBrokersUnknown",
        words="No broker of a cluster is known",
        measure="brokers",
        condition=f"{BROKERS} == 0",
        severity="critical",
        where=("framegate_upstream",),
        hold="1m",
    ),
    Problem(
        alert="FramegateCertificateEnds",
        words="A certificate ends within three days",
        measure="days left",
        condition=f"{DAYS} < 3",
        severity="critical",
        where=("framegate_certificate",),
        hold="0s",
    ),
)
_REFUSED: Final = (
    _refusal("FramegateConnectionsRefused", "Connections are refused at accept", TURNED_AWAY, f"({TURNED_AWAY} + {ACCEPTED})"),
    _refusal("FramegateHandshakesFail", "Clients fail at the TLS handshake", NO_HANDSHAKE, f"({ACCEPTED} > 0)"),
    _refusal("FramegateLoginsRefused", "Clients do not prove who they are", NO_LOGIN, f"({LOGINS} > 0)"),
    _refusal("FramegateFramesRefused", "Frames are refused", NO_FRAME, f"({NO_FRAME} + {FRAMES})"),
)
_SLOW: Final = (
    _slowness("FramegateForwardSlow", "Frames take longer than 10 ms to pass", LATE_FRAMES, f"({SAMPLED_FRAMES} > 0)"),
    _slowness("FramegateKafkaSlow", "Kafka requests take longer than 1 s", LATE_REQUESTS, f"({KAFKA_REQUESTS} > 0)"),
    Problem(
        alert="FramegateMemoryDepleted",
        words="Clients wait for memory",
        measure="s in a second",
        condition=f"{per_second('framegate_memory_pool_depleted_time_seconds_total{@}', WHO)} > 0.05",
        severity="warning",
        told="{{ $value | humanize }} seconds a second, over all processors, channels waited for memory",
    ),
    Problem(
        alert="FramegateSlowPeers",
        words="Peers do not take what is sent to them",
        measure="channels, all the time",
        condition=f"{FOR_PEERS} > clamp_min(0.02 * {total('framegate_connection_active{@}', WHO)}, 0.5)",
        severity="info",
        hold="10m",
    ),
    Problem(
        alert="FramegateLoopBusy",
        words="A processor has no time left",
        measure="of its time busy",
        condition=f"{BUSY} / {LOOP} > 0.9",
        severity="warning",
        where=("framegate_worker",),
        hold="10m",
        told=f"{PERCENT} of its time it was busy",
    ),
)
_TAP: Final = (
    Problem(
        alert="FramegateTapLoses",
        words="The tap loses frames",
        measure="frames a second",
        condition=f"{per_second(LOST, WHO + ', framegate_reason')} > 0",
        severity="warning",
        where=("framegate_reason",),
        hold="0s",
    ),
    Problem(
        alert="FramegateTapLags",
        words="A reader of the tap is far behind",
        measure="s unread",
        condition="framegate_tap_lag_time_seconds{@} > 600",
        severity="warning",
        where=("framegate_consumer",),
        told=f"{SECONDS} is the age of the oldest that it has yet to read",
    ),
    Problem(
        alert="FramegateTapForgets",
        words="The tap's budget will pass what a reader has yet to read",
        measure="of the budget",
        condition=f"{UNREAD} / on ({WHO}) group_left max by ({WHO}) (framegate_tap_limit_bytes{{@}}) > 0.8",
        severity="critical",
        where=("framegate_consumer",),
        told=f"{PERCENT} of the budget it has yet to read",
    ),
    Problem(
        alert="FramegateTapConsumerUnreadable",
        words="A reader's file in the tap cannot be read",
        measure="files",
        condition="framegate_tap_consumer_unreadable{@} > 0",
        severity="warning",
    ),
)
_OWN: Final = (
    _counted("FramegateProcessorRestarts", "A processor was started again", "restarts", "framegate_worker_restarts_total{@}", "framegate_reason"),
    _counted(
        "FramegateHandlerRestarts", "A handler process was started again", "restarts", "framegate_handler_restarts_total{@}", "framegate_reason"
    ),
    Problem(
        alert="FramegateHandlerFails",
        words="A handler raises",
        measure="frames a second",
        condition=per_second('framegate_handler_requests_total{@l, framegate_handler_action="failed"}', AT) + " > 0",
        severity="warning",
        where=LISTENER,
    ),
    _counted("FramegateInternalErrors", "A processor caught an error of its own", "errors", "framegate_processor_errors_total{@}", "framegate_place"),
    _counted("FramegateTaskFailures", "A part of the control process failed", "failures", "framegate_task_failures_total{@}", "framegate_task"),
    Problem(
        alert="FramegateAcceptErrors",
        words="Connections cannot be accepted",
        measure="errors",
        condition=grown("framegate_accept_errors_total{@l}", f"{AT}, error_type"),
        severity="warning",
        where=("framegate_listener", "error_type"),
        hold="0s",
    ),
    Problem(
        alert="FramegateDrainStuck",
        words="A drain does not end",
        measure="s, and not empty",
        condition=(f"max by ({WHO}) (framegate_drain_time_seconds{{@}}) > 300 and on ({WHO}) {total('framegate_connection_active{@}', WHO)} > 0"),
        severity="warning",
        hold="0s",
        told=f"it began {SECONDS} ago, and connections are open",
    ),
)
_AROUND: Final = (
    Problem(
        alert="FramegateUpstreamDown",
        words="An address of an upstream is left out",
        measure="addresses left out",
        condition=f"{DOWN} > 0 < {ADDRESSES}",
        severity="warning",
        where=("framegate_upstream",),
    ),
    Problem(
        alert="FramegateBrokerWithoutPort",
        words="Clients cannot reach a broker: framegate has no port for it",
        measure="brokers without a port",
        condition=f"{NO_PORT} > 0",
        severity="warning",
        where=("framegate_upstream",),
    ),
    Problem(
        alert="FramegateCertificateEndsSoon",
        words="A certificate ends within two weeks",
        measure="days left",
        condition=f"{DAYS} >= 3 < 14",
        severity="warning",
        where=("framegate_certificate",),
        hold="1h",
    ),
    _counted(
        "FramegateReloadRefused",
        "A file that was replaced was not taken",
        "files",
        'framegate_reload_count_total{@, error_type="refused"}',
        "framegate_file_kind",
    ),
    Problem(
        alert="FramegateCollectorUnreachable",
        words="The collector does not take what is exported",
        measure="failed exports a second",
        condition=f"{FAILED} > 0 unless {PASSED} > 0",
        severity="warning",
        where=("framegate_signal",),
    ),
    _counted("FramegateLogBlocked", "Log rows are dropped: standard output cannot be written", "rows", "framegate_log_dropped_total{@}"),
    _counted("FramegateChangesRefused", "Calls of the control plane find it unavailable", "calls", UNAVAILABLE, "rpc_method"),
)

PROBLEMS: Final = (*_GONE, *_REFUSED, *_SLOW, *_TAP, *_OWN, *_AROUND)
