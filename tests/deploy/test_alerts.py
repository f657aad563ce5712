"""The alerts over a simulated framegate: each trouble fires its alert in time and nothing else pages; quiet days page nobody. promtool judges."""

import functools
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes import command_lines, deploying, monitoring

written = deploying.module("dashboards.problems")
queries = deploying.module("dashboards.queries")
FOLDER = deploying.FOLDER / "alerts"
PROMTOOL = monitoring.program("promtool")
judged = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")
GONE = None
"""No sample: the target is gone."""
Values = Mapping[str, float | None]
"""Of a series: a gauge's value, or by how much a counter grows each minute."""
Spell = tuple[int, int]
"""The minute at which it begins, and its minutes."""
HOUR, DAY = 60, 1_440

OF_BROKER = 'framegate_upstream="orders", server_address="kafka-{}", server_port="9092"'
OTHER = 'framegate_listener="other"'
SPARE = 'framegate_upstream_{}{{framegate_upstream="spare", server_address="10.9.9.9", server_port="9092"}}'
KAFKA = 'framegate_listener="kafka"'
WAITING_API = f'framegate_kafka_request_waiting{{{KAFKA}, framegate_kafka_api="Produce"}}'
FORWARD = "framegate_frame_forward_duration_seconds_{}{{" + KAFKA + ', framegate_direction="request"{}}}'
PRODUCE = "framegate_kafka_request_duration_seconds_{}{{" + KAFKA + ', framegate_kafka_api="Produce"{}}}'
QUEUED = "framegate_handler_queue_time_seconds_{}{{" + KAFKA + "{}}}"
FRAMES = f'framegate_frame_count_total{{{KAFKA}, framegate_side="downstream", network_io_direction="receive"}}'
RESPONSES = FRAMES.replace("receive", "transmit")
OF_LISTENER = f'framegate_listener_upstream{{{KAFKA}, framegate_upstream="orders"}}'
OF_SPARE = OF_LISTENER.replace(KAFKA, OTHER).replace("orders", "spare")
ACCEPTED = f"framegate_connection_accepted_total{{{KAFKA}}}"
ACTIVE = f'framegate_connection_active{{{KAFKA}, framegate_side="downstream"}}'
READY = 'framegate_ready{framegate_probe="readiness"}'
CERTIFICATE, BEGAN = (f'framegate_tls_certificate_not_{when}_seconds{{framegate_certificate="listener/kafka"}}' for when in ("after", "before"))
PENDING = f'framegate_channel_pending{{{KAFKA}, framegate_side="downstream"}}'
BUSY, IDLE = (f'framegate_event_loop_time_seconds_total{{framegate_worker="0", framegate_state="{state}"}}' for state in ("busy", "idle"))
QUICK_FRAMES, QUICK_REQUESTS = FORWARD.format("bucket", ', le="0.009290681"'), PRODUCE.format("bucket", ', le="1.0"')
THROTTLED = "framegate_container_cpu_throttled_periods_total"
RUN_DELAY = 'framegate_process_run_delay_seconds_total{framegate_process="processor-0"}'
DESCRIPTORS = 'process_unix_file_descriptor_count{framegate_process="processor-0"}'
DEPLETED = "framegate_memory_pool_depleted_time_seconds_total"
MUTED = 'framegate_channel_muted{{framegate_mute_cause="{}"}}'
HELD = f'framegate_throttle_time_seconds_total{{{KAFKA}, framegate_side="downstream"}}'
LOGINS = f'framegate_authentication_count_total{{{KAFKA}, framegate_sasl_mechanism="PLAIN"}}'
WRONG_LOGINS = LOGINS.replace("}", ', error_type="credentials"}')
FAILED = "framegate_client_login_failures_per_second{{" + KAFKA + ', framegate_principal="{}", client_address="{}"}}'
NOISY = f'framegate_client_share{{{KAFKA}, framegate_principal="user-3", client_address="10.0.0.7", framegate_measure="bytes"}}'
IO = f'framegate_io_bytes_total{{{KAFKA}, framegate_side="downstream", network_io_direction="receive"}}'
HANDLER = 'process_memory_usage_bytes{framegate_process="handler-0"}'
EXPORTS = 'framegate_telemetry_exports_total{framegate_signal="metrics"}'
FAILED_EXPORTS = EXPORTS.replace("}", ', error_type="failed"}')
UNREAD, BEHIND = (f'framegate_tap_lag_{name}{{framegate_consumer="spark"}}' for name in ("bytes", "time_seconds"))
FREE, TIME_LEFT = "framegate_tap_disk_free_bytes", "framegate_tap_disk_time_left_seconds"


def closed(cause: str, side: str = "", listener: str = KAFKA) -> str:
    side = side or ("upstream" if cause.startswith("upstream_") else "internal" if cause == "processor_died" else "downstream")
    return f'framegate_connection_closed_total{{{listener}, framegate_cause="{cause}", framegate_side="{side}"}}'


def connects(broker: int, error: str = "") -> str:
    return f"framegate_upstream_connect_duration_seconds_count{{{OF_BROKER.format(broker)}" + (f', error_type="{error}"}}' if error else "}")


def of(broker: int, metric: str) -> str:
    return f"framegate_upstream_{metric}{{{OF_BROKER.format(broker)}}}"


def passed(broker: int, way: str) -> str:
    return f'framegate_upstream_frame_count_total{{{OF_BROKER.format(broker)}, network_io_direction="{way}"}}'


def silent(broker: int) -> Values:
    """It does not answer any more."""
    return {passed(broker, "receive"): 0, of(broker, "answer_asked_total"): 0, of(broker, "answer_recent"): 0}


def ended(broker: int, error: str = "") -> str:
    return f"framegate_upstream_connection_closed_total{{{OF_BROKER.format(broker)}" + (f', error_type="{error}"}}' if error else "}")


CALM: dict[str, float | None] = {
    "up": 1,
    "framegate_config_revision": 1,
    READY: 1,
    "framegate_draining": 0,
    "framegate_drain_time_seconds": 0,
    ACCEPTED: 12,
    ACTIVE: 50,
    closed("peer_closed"): 12,
    closed("upstream_refused"): 0,
    closed("tls_failed"): 0,
    closed("no_data"): 0,
    FRAMES: 6_000,
    RESPONSES: 6_000,
    IO: 6e7,
    LOGINS: 12,
    WRONG_LOGINS: 0,
    FORWARD.format("count", ""): 6_000,
    QUICK_FRAMES: 5_990,
    PRODUCE.format("count", ""): 3_000,
    QUICK_REQUESTS: 2_995,
    **{of(broker, "endpoint_count"): 1 for broker in (1, 2, 3, 4)},
    **{of(broker, "endpoint_down"): 0 for broker in (1, 2, 3, 4)},
    **{of(broker, "request_age_seconds"): 0.3 for broker in (1, 2, 3, 4)},
    **{of(broker, "request_open"): 1 for broker in (1, 2, 3, 4)},
    **{of(broker, f"answer_{name}"): 0 for broker in (1, 2, 3, 4) for name in ("age_seconds", "waiting", "time_seconds_total")},
    **{of(broker, "answer_recent"): 500 for broker in (1, 2, 3, 4)},
    **{of(broker, "answer_asked_total"): 1_500 for broker in (1, 2, 3, 4)},
    **{passed(broker, way): 1_500 for broker in (1, 2, 3, 4) for way in ("receive", "transmit")},
    **{ended(broker): 3 for broker in (1, 2, 3, 4)},
    OF_LISTENER: 1,
    **{connects(broker): 3 for broker in (1, 2, 3, 4)},
    "framegate_memory_usage_bytes": 4e8,
    "framegate_memory_limit_bytes": 1e9,
    "framegate_container_cpu_periods_total": 600,
    THROTTLED: 3,
    RUN_DELAY: 0.5,
    BUSY: 15,
    IDLE: 45,
    DESCRIPTORS: 100,
    'framegate_process_file_descriptor_limit{framegate_process="processor-0"}': 1_000,
    DEPLETED: 0,
    HELD: 0,
    **{MUTED.format(cause): 0 for cause in ("admin", "tap")},
    PENDING: 0,
    HANDLER: 3e7,
    EXPORTS: 6,
    FAILED_EXPORTS: 0,
    CERTIFICATE: 90 * 86_400,
    BEGAN: -90 * 86_400,
    UNREAD: 1e6,
    "framegate_tap_limit_bytes": 1e9,
    BEHIND: 5,
    FREE: 5e10,
    "framegate_tap_disk_size_bytes": 1e11,
    'framegate_tap_dropped_total{framegate_reason="disk_full"}': 0,
}
"""A framegate with 50 clients and four brokers, and nothing wrong."""
NOBODY: Values = {FRAMES: 0, RESPONSES: 0, FORWARD.format("count", ""): 0, QUICK_FRAMES: 0, PRODUCE.format("count", ""): 0, QUICK_REQUESTS: 0}
ALONE: Values = {**NOBODY, ACCEPTED: 0, ACTIVE: 0, closed("peer_closed"): 0, LOGINS: 0}
AWAY: Values = dict.fromkeys(CALM, GONE)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something goes wrong after ``calm`` minutes, for ``lasts`` minutes.

    Attributes:
        severity, alert: what fires.
        changes: values of series meanwhile.
        place: part of its label ``where``.
        fires: after so many minutes, not one earlier; ends: so many minutes after the trouble.
        flaps: as ``changes``, but each second minute only; ``later``: from the second minute on.
        besides: other alerts that page, rightly.
    """

    severity: str
    name: str
    short: str
    changes: Values
    place: str = ""
    fires: int = field(kw_only=True)
    ends: int = 0
    calm: int = 60
    lasts: int = 30
    flaps: Values = field(default_factory=dict)
    later: Values = field(default_factory=dict)
    besides: tuple[str, ...] = ()

    @property
    def alert(self) -> str:
        return f"Framegate{self.short}"


page, ticket, info = (functools.partial(Trouble, severity) for severity in ("critical", "warning", "info"))


def counts(series: str) -> bool:
    return series.partition("{")[0].endswith(("_total", "_seconds_count", "_seconds_bucket"))


def samples(series: str, end: int, changes: Sequence[tuple[Sequence[Spell], Values]]) -> str:
    """The values of a series, one a minute; a counter begins anew after a gap."""
    words, total, there = [], 0.0, True
    during = dict.fromkeys(range(end), CALM.get(series, 0.0 if counts(series) else GONE))
    for spells, values in changes:
        if series in values:
            during.update((minute, values[series]) for begin, minutes in spells for minute in range(begin, min(begin + minutes, end)))
    for minute in range(end):
        value = during[minute]
        if value is GONE:
            words.append("stale" if there else "_")
            total = 0.0
        else:
            total += value
            words.append(f"{total if counts(series) else value:.12g}")
        there = value is not GONE
    return " ".join(words)


def unit_test(
    name: str, end: int, changes: Sequence[tuple[Sequence[Spell], Values]], expected: Sequence[tuple[int, str, Sequence[str]]]
) -> dict[str, Any]:
    """A test of promtool: at a minute a query of ALERTS has samples with these labels."""
    series = dict.fromkeys((*CALM, *(one for _, values in changes for one in values)))
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": labelled(one), "values": samples(one, end, changes)} for one in series],
        "promql_expr_test": [
            {"expr": f"({query}) > bool 0", "eval_time": f"{minute}m", "exp_samples": [{"labels": labels, "value": 1} for labels in found]}
            for minute, query, found in expected
        ],
    }


def labelled(series: str) -> str:
    name, _, labels = series.partition("{")
    return f'{name}{{job="framegate", instance="edge-1"{", " if labels else ""}{labels or "}"}'


def judge(folder: Path, *tests: Mapping[str, Any]) -> str:
    """What promtool finds wrong in tests of all rules, evaluated every minute; empty: nothing."""
    assert PROMTOOL is not None, "where it is not, this is skipped"
    document = {"rule_files": [str(FOLDER / "framegate.yaml")], "evaluation_interval": "1m", "tests": [*tests]}
    (folder / "tests.yaml").write_text(json.dumps(document))  # JSON is YAML
    done = subprocess.run([PROMTOOL, "test", "rules", str(folder / "tests.yaml")], capture_output=True, text=True, check=False, timeout=1_140)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def firing(minutes: str = "", **labels: str) -> str:
    chosen = ", ".join(f'{key}="{value}"' for key, value in {"alertstate": "firing", **labels}.items())
    return f"count by (alertname) (max_over_time(ALERTS{{{chosen}}}[{minutes}]))" if minutes else f"count by (alertname) (ALERTS{{{chosen}}})"


REFUSED = {f"upstream_{name}": {closed(f"upstream_{name}"): 12, closed("peer_closed"): 0} for name in ("refused", "closed")}
# fmt: off
TROUBLES = (
    page("nothing is heard", "Absent", AWAY, fires=10),
    page("a scrape fails", "Down", {**AWAY, "up": 0}, fires=2),
    page("it is not ready", "NotReady", {READY: 0}, fires=2),
    page("stopped upstream: it accepts, and does not answer", "RequestsUnanswered", {of(2, "request_age_seconds"): 25, of(2, "request_open"): 20,
        **silent(2)}, "orders kafka-2:9092", fires=1),
    page("no Produce is answered, while others are", "RequestsUnanswered", {PRODUCE.format("count", ""): 0, QUICK_REQUESTS: 0, WAITING_API: 3},
        "kafka Produce", fires=2),
    page("an endpoint does not read what it is sent", "RequestsUnanswered", {of(2, "send_stalled"): 3,
        f'framegate_upstream_connection_count{{{OF_BROKER.format(2)}, framegate_state="used"}}': 5}, "orders kafka-2:9092", fires=1),
    ticket("three of ten answers are missing", "RequestsUnanswered", {passed(2, "receive"): 1_050}, "orders kafka-2:9092", fires=5),
    ticket("one client of two waits", "RequestsUnanswered", {of(2, "request_age_seconds"): 25, of(2, "request_open"): 2}, "orders kafka-2:9092",
        fires=5),
    page("stopped upstream of another protocol, which has answered before", "RequestsUnanswered", {of(2, "answer_age_seconds"): 75,
        of(2, "answer_waiting"): 20, **silent(2)}, "orders kafka-2:9092", fires=1),
    ticket("an upstream hangs from the start", "RequestsUnanswered", {of(9, "answer_age_seconds"): 45, of(9, "answer_waiting"): 1_000,
        passed(9, "receive"): 0, passed(9, "transmit"): 30, of(9, "answer_asked_total"): 30, of(9, "answer_recent"): 0}, "orders kafka-9:9092",
        fires=5),
    page("clients give up after seconds", "RequestsUnanswered", {ended(2, "unanswered"): 12, ended(2): 0, **silent(2)}, "orders kafka-2:9092",
        fires=1),
    page("a broker answers with errors", "UpstreamFails",
        {f'framegate_kafka_response_errors_total{{{OF_BROKER.format(2)}, error_type="coordinator_not_available"}}': 1_400},
        "orders kafka-2:9092 coordinator_not_available", fires=7, ends=2),
    ticket("an upstream resets connections", "UpstreamFails", {ended(2, "reset"): 2}, "orders kafka-2:9092 reset", fires=6, ends=3),
    page("dead upstream", "UpstreamGone", {**REFUSED["upstream_refused"],
        **{key: 0 if "error_type" not in key else 6 for number in (1, 2, 3, 4) for key in (connects(number), connects(number, "refused"))},
        **{of(number, "endpoint_down"): 1 for number in (1, 2, 3, 4)}}, "orders", fires=1),
    page("an upstream whose addresses are left out after connects have timed out", "UpstreamGone", {**REFUSED["upstream_refused"], RESPONSES: 0},
        "orders", later={of(number, "endpoint_down"): 1 for number in (1, 2, 3, 4)}, fires=2),
    page("unresolvable name", "UpstreamGone", {**REFUSED["upstream_refused"], connects(1, "resolution"): 12,
        **{of(number, "endpoint_count"): 0 for number in (1, 2, 3, 4)}}, "orders", fires=1),
    ticket("half of the endpoints are gone", "UpstreamFails", {**{of(number, "endpoint_down"): 1 for number in (3, 4)}, connects(3): 0,
        connects(4): 0, connects(3, "timeout"): 2}, "orders kafka-3", fires=5, ends=3),
    ticket("the name of one endpoint is not resolved", "UpstreamFails", {of(3, "endpoint_count"): 0}, "orders kafka-3:9092", fires=5),
    ticket("an answer on one connection belongs to no request", "UpstreamFails", {f"framegate_kafka_pairing_lost_total{{{KAFKA}}}": 1}, "kafka",
        lasts=1, fires=0, ends=9),
    page("an upstream closes every connection", "ListenerFails", {**REFUSED["upstream_closed"], RESPONSES: 0}, "kafka", fires=2),
    page("a tenth of the connections fails", "ClientsFail", {closed("upstream_timeout"): 1.2}, "kafka", fires=18, ends=1, lasts=60),
    page("another listener fails while an upstream is dead", "ListenerFails", {**{of(number, "endpoint_down"): 1 for number in (1, 2, 3, 4)},
        f"framegate_connection_accepted_total{{{OTHER}}}": 12, closed("peer_reset", "upstream", OTHER): 12,
        f'framegate_frame_count_total{{{OTHER}, framegate_side="downstream", network_io_direction="transmit"}}': 0,
        f'framegate_listener_upstream{{{OTHER}, framegate_upstream="stock"}}': 1}, "other", fires=1, ends=1, besides=("FramegateUpstreamGone",)),
    page("an upstream flaps", "ClientsFail", {closed("upstream_refused"): 6}, "kafka",
        flaps={of(number, "endpoint_down"): 1 for number in (1, 2, 3, 4)}, fires=11, ends=1),
    ticket("control stands still", "Control", {"framegate_control_lag_time_seconds_total": 20}, fires=0, ends=9, lasts=1),
    ticket("one Kafka API is slow", "Slow", {QUICK_REQUESTS: 1_000}, "kafka Produce", fires=6, ends=3),
    ticket("an upstream of another protocol takes 10 s for an answer", "Slow", {passed(2, "receive"): 60, passed(2, "transmit"): 60,
        of(2, "answer_time_seconds_total"): 600}, "orders kafka-2:9092", fires=9),
    ticket("a handler is slower than its frames come", "Slow", {QUEUED.format("count", ""): 60, QUEUED.format("bucket", ', le="1.0"'): 6}, "kafka",
        fires=5, ends=4),
    ticket("frames are slow", "Slow", {QUICK_FRAMES: 3_000}, "kafka", fires=6, ends=3),
    ticket("throttled", "CpuShort", {THROTTLED: 540, RUN_DELAY: 40}, "processor-0", fires=6, ends=3),
    ticket("noisy client, refused by the limit of an address", "ClientsRefused",
        {f'framegate_connection_rejected_total{{{KAFKA}, framegate_reason="address_connections"}}': 60}, "kafka address_connections", fires=5,
        ends=4),
    info("a quota holds back most", "HeldBack", {HELD: 2_400}, "kafka", fires=13, ends=1),
    info("noisy client among 50", "NoisyClient", {IO: 66e7, NOISY: 0.9}, "kafka user-3 10.0.0.7", fires=5),
    *(
        ticket(f"brute force on {user}, from {address}", "LoginsFail", {ACCEPTED: 72, WRONG_LOGINS: 60, closed("auth_failed"): 60,
            FAILED.format(user, address): 1.0}, f"kafka {user}.*{address}", fires=5)
        for user, address in (("admin", "203.0.113.9"), ("admin", "<many>"), ("<many>", "203.0.113.9"), ("<many>", "<many>"))
    ),
    ticket("clients of a mechanism that is not enabled", "ClientsRefused", {ACCEPTED: 72, LOGINS.replace("}", ', error_type="mechanism"}'): 60,
        closed("auth_failed"): 60}, "kafka mechanism", fires=5, ends=4),
    ticket("clients with a wrong certificate", "ClientsRefused", {ACCEPTED: 42, closed("tls_failed"): 30}, "kafka tls_failed", fires=5, ends=4),
    ticket("a client whose certificate's principal may not connect", "ClientsRefused", {f"framegate_connection_accepted_total{{{OTHER}}}": 42,
        closed("auth_failed", listener=OTHER): 30}, "other auth_failed", fires=5, ends=4),
    ticket("oversized frames", "ClientsRefused",
        {f'framegate_frame_rejected_total{{{KAFKA}, framegate_side="downstream", framegate_reason="frame_too_large"}}': 120}, "kafka frame_too_large",
        fires=5, ends=4),
    ticket("rules that refuse every Produce", "ClientsRefused",
        {f'framegate_kafka_request_refused_total{{{KAFKA}, framegate_kafka_api="Produce", framegate_kafka_refusal="api"}}': 3_000,
        PRODUCE.format("count", ""): 0, QUICK_REQUESTS: 0}, "kafka Produce api", fires=7, ends=2),
    page("certificate three days from its end", "CertificateEnds", {CERTIFICATE: 3 * 86_400 - 60}, "listener/kafka", fires=0),
    ticket("certificate ten days from its end", "CertificateEnds", {CERTIFICATE: 864_000}, fires=60, lasts=90),
    ticket("the tap's disk fills slowly", "Tap", {TIME_LEFT: 20_000}, fires=1),
    ticket("the tap's disk is full", "Tap", {FREE: 4e9, 'framegate_tap_dropped_total{framegate_reason="disk_full"}': 10}, fires=1, ends=4),
    ticket("the store refuses the tap's log", "Tap", {"framegate_tap_ship_failing": 1}, fires=1),
    page("the tap holds connections up", "Tap", {MUTED.format("tap"): 3}, fires=3),
    info("a forgotten mute", "HeldBack", {MUTED.format("admin"): 3}, fires=15),
    page("a reader of the tap stands still", "TapForgets", {BEHIND: 900, UNREAD: 9e8}, fires=5),
    ticket("leaking handler", "Handlers", {}, "handler-0", fires=6, ends=5),
    ticket("the memory is nearly used up", "MemoryShort", {"framegate_memory_usage_bytes": 9.5e8}, fires=5),
    ticket("clients hold all of the pool", "MemoryShort", {DEPLETED: 50}, fires=5, ends=4),
    ticket("storm of connections", "Accept", {ACCEPTED: 12_000, closed("peer_closed"): 12_000}, "kafka", fires=6, ends=3, calm=90),
    ticket("few descriptors are left", "Accept", {DESCRIPTORS: 950}, "processor-0", fires=5),
    ticket("no traffic", "NoTraffic", ALONE, "kafka", fires=14, calm=25 * HOUR),
    page("nobody gets in any more", "ListenerFails", {**ALONE, ACCEPTED: 60, closed("tls_failed"): 60}, "kafka", fires=2, calm=25 * HOUR),
    page("no client takes the certificate any more", "ListenerFails", {**ALONE, ACCEPTED: 60, closed("tls_failed"): 60}, "kafka", fires=4, lasts=8),
    info("clients do not read", "HeldBack", {PENDING: 5}, "kafka downstream", fires=15),
    ticket("a processor is killed", "Broken", {'framegate_worker_restarts_total{framegate_reason="died"}': 1}, "died", fires=0, ends=9, lasts=1),
    ticket("a processor stands still", "Broken", {'framegate_worker_lag_time_seconds_total{framegate_worker="0"}': 7}, "0", fires=0, ends=9, lasts=1),
    ticket("the collector is away", "Control", {EXPORTS: 0, FAILED_EXPORTS: 6}, "metrics", fires=9),
)
# fmt: on
LEAK = 30e6
"""Bytes by which the leaking handler grows each minute."""


def simulated(trouble: Trouble) -> dict[str, Any]:
    """It fires in its minute and not before, names the place, ends, and nothing else pages."""
    begin, over = trouble.calm, trouble.calm + trouble.lasts
    changes: list[tuple[Sequence[Spell], Values]] = [([(130, begin - 200)], AWAY), ([(begin, trouble.lasts)], trouble.changes)]
    changes.append(([(begin + minute, 1) for minute in range(0, trouble.lasts, 2)], trouble.flaps))
    changes.append(([(begin + 1, trouble.lasts - 1)], trouble.later))
    if not trouble.changes:
        changes = [([(begin + minute, HOUR)], {HANDLER: 3e7 + min(minute, trouble.lasts) * LEAK}) for minute in range(HOUR)]
    own = firing(alertname=trouble.alert, severity=trouble.severity)
    there = [f'{{alertname="{trouble.alert}"}}']
    placed = own.replace("}", f', where=~".*{trouble.place}.*"}}') if trouble.place else own
    pages = firing(f"{trouble.lasts + 29}m", severity="critical")
    expected = [
        (begin + trouble.fires - 1, own, []),
        (begin + trouble.fires, placed, there),
        *([(over + trouble.ends - 1, own, there)] if trouble.ends else []),
        (over + trouble.ends, own, []),
        (over + 12, firing(), []),
        (over + 29, pages, there * (trouble.severity == "critical") + [f'{{alertname="{name}"}}' for name in trouble.besides]),
    ]
    return unit_test(trouble.name, over + 30, changes, expected)


@judged
@pytest.mark.extended
@pytest.mark.slow  # promtool evaluates each minute
@pytest.mark.timeout(1_200)
def test_each_trouble_fires_its_alert_in_time_names_the_place_pages_for_nothing_else_and_ends_within_ten_minutes(tmp_path: Path) -> None:
    assert all(trouble.ends <= 10 for trouble in TROUBLES)
    wrong = judge(tmp_path, *map(simulated, TROUBLES))
    assert not wrong, wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """A day on which nobody is to be woken: what changes in which spells; ``silent``: an alert that does not fire either."""

    name: str
    changes: Sequence[tuple[Sequence[Spell], Values]] = field(default=())
    silent: str = ""


def every(minutes: int, lasts: int = 1, begin: int = 7, end: int = DAY) -> list[Spell]:
    return [(minute, lasts) for minute in range(begin, end, minutes)]


NIGHT, BATCH = [(0, 6 * HOUR), (22 * HOUR, 2 * HOUR)], [(2 * HOUR, 40)]
RESTART: Values = {**CALM, READY: 0, of(1, "request_age_seconds"): 40, QUICK_FRAMES: 1_000, RUN_DELAY: 40, ACCEPTED: 600, THROTTLED: 300}
QUIET_DAYS = (
    Quiet(
        name="a cron job with an old password, and twelve mistyped ones an hour",
        changes=[
            (every(5), {ACCEPTED: 13, WRONG_LOGINS: 1, closed("auth_failed"): 1, FAILED.format("cron", "10.0.0.9"): 1 / 60}),
            (NIGHT, ALONE),
            (every(5), {ACCEPTED: 1, WRONG_LOGINS: 1, closed("auth_failed"): 1, FAILED.format("cron", "10.0.0.9"): 1 / 60}),
        ],
        silent="FramegateLoginsFail",
    ),
    Quiet(
        name="a scanner, also at night",
        changes=[
            (NIGHT, ALONE),
            ([(3 * HOUR, 90), (14 * HOUR, 90)], {ACCEPTED: 20, closed("tls_failed"): 10, closed("wrong_protocol"): 10}),
            ([(4 * HOUR, 90)], {ACCEPTED: 100, WRONG_LOGINS: 100, closed("auth_failed"): 100, FAILED.format("<many>", "203.0.113.9"): 1.7}),
        ],
    ),
    Quiet(
        name="rolling restarts, of brokers and of framegate",
        changes=[
            *(
                (
                    [(10 * HOUR + 5 * broker, 2), (15 * HOUR + 5 * broker, 2)],
                    {
                        of(broker, "endpoint_down"): 1,
                        connects(broker): 0,
                        connects(broker, "refused"): 40,
                        ACCEPTED: 70,
                        closed("upstream_refused"): 40,
                        closed("upstream_closed"): 12,
                    },
                )
                for broker in (1, 2, 3, 4)
            ),
            ([(12 * HOUR, 1)], {**AWAY, "up": 0}),
            ([(12 * HOUR + 1, 1)], RESTART),
        ],
    ),
    Quiet(
        name="the nightly batch, one-way after requests by day; a standby that is down, a certificate of a day, a connection cut now and then",
        changes=[
            ([(0, DAY)], {SPARE.format("endpoint_count"): 1, SPARE.format("endpoint_down"): 1, OF_SPARE: 1}),
            ([(0, 12 * HOUR)], {BEGAN: 0, CERTIFICATE: 86_400}),
            ([(12 * HOUR, 12 * HOUR)], {BEGAN: 43_200, CERTIFICATE: 129_600}),
            (every(45), {closed("upstream_closed"): 1}),
            (NIGHT, ALONE),
            (
                BATCH,
                {
                    FRAMES: 120_000,
                    FORWARD.format("count", ""): 120_000,
                    QUICK_FRAMES: 60_000,
                    PRODUCE.format("count", ""): 60_000,
                    QUICK_REQUESTS: 20_000,
                    ACTIVE: 4,
                    ACCEPTED: 12,
                    **silent(3),
                    passed(3, "transmit"): 1_200,
                    DEPLETED: 30,
                    BUSY: 57,
                    IDLE: 3,
                    THROTTLED: 200,
                    HELD: 60,
                    TIME_LEFT: 15_000,
                    BEHIND: 300,
                    PENDING.replace("downstream", "upstream"): 3,
                },
            ),
        ],
    ),
    Quiet(
        name="one client at its quota", changes=[([(0, DAY)], {HELD: 60, IO: 66e7, NOISY: 0.9}), (NIGHT, {**ALONE, ACTIVE: 1, FRAMES: 60, HELD: 60})]
    ),
    Quiet(name="empty nights", changes=[(NIGHT, ALONE)]),
    Quiet(name="a slow first minute after each deploy", changes=[(every(4 * HOUR), AWAY), (every(4 * HOUR, begin=8), RESTART)]),
    Quiet(
        name="requests that wait 60 s for news, frames that have no answers, clients that do not wait for their last one, and events by day only",
        changes=[
            ([(8 * HOUR, 10 * HOUR)], {passed(1, "receive"): 4_500}),
            (
                [(0, DAY)],
                {
                    passed(2, "receive"): 20,
                    passed(2, "transmit"): 20,
                    of(2, "answer_asked_total"): 20,
                    of(2, "answer_time_seconds_total"): 1_200,
                    of(2, "answer_recent"): 0,
                    of(2, "answer_waiting"): 20,
                    of(2, "answer_age_seconds"): 59,
                    **silent(3),
                    of(3, "answer_asked_total"): 1_500,
                    of(3, "answer_waiting"): 20,
                    of(3, "answer_age_seconds"): 80_000,
                    ended(3): 0,
                    ended(3, "unanswered"): 12,
                    ended(4): 0,
                    ended(4, "unanswered"): 3,
                },
            ),
        ],
        silent="FramegateRequestsUnanswered",
    ),
    Quiet(
        name="clients newer than their broker, and transactions in quick succession",
        changes=[
            (
                [(0, DAY)],
                {
                    f'framegate_kafka_response_errors_total{{{OF_BROKER.format(1)}, error_type="{name}"}}': 500
                    for name in ("unsupported_version", "concurrent_transactions")
                },
            )
        ],
        silent="FramegateUpstreamFails",
    ),
    Quiet(name="the collector is restarted", changes=[(every(6 * HOUR, 3), AWAY), (every(6 * HOUR, 4, begin=30), {EXPORTS: 0, FAILED_EXPORTS: 6})]),
)


@pytest.mark.extended
@judged
@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_nobody_is_paged_on_quiet_days(tmp_path: Path) -> None:
    pages = firing("1d", severity="critical")
    none = [(DAY - 1, pages, [])]
    asked = {day.name: none + [(DAY - 1, firing("1d", alertname=day.silent), [])] * bool(day.silent) for day in QUIET_DAYS}
    wrong = judge(tmp_path, *(unit_test(day.name, DAY, day.changes, asked[day.name]) for day in QUIET_DAYS))
    assert not wrong, wrong


def rules(name: str = "framegate.yaml") -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / name).read_text())
    (group,) = (document if name == "framegate.yaml" else document["spec"])["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_every_alert_has_a_trouble_and_every_trouble_an_alert() -> None:
    assert {(rule["alert"], rule["labels"]["severity"]) for rule in rules()} - {("FramegateClientsFail", "warning")} == {
        (trouble.alert, trouble.severity) for trouble in TROUBLES
    }


def test_every_alert_says_what_how_much_where_and_what_to_do() -> None:
    for rule in rules():
        notes = rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert notes["runbook_url"] == f"deploy/alerts/RUNBOOK.md#{rule['alert'].lower()}"
        assert notes["description"].startswith(notes["summary"])
        if rule["alert"] != "FramegateAbsent":
            assert "$value" in notes["description"]
            assert "$labels.instance" in notes["description"]


def test_the_operators_rules_are_the_same() -> None:
    document = yaml.safe_load((FOLDER / "prometheus-rule.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rules("prometheus-rule.yaml") == rules()


# --- the runbook -------------------------------------------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """What stands below each heading of an alert."""
    parts = re.split(r"^## (Framegate\w+)\n", (FOLDER / "RUNBOOK.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def typed(text: str) -> list[str]:
    """The command lines of a section: in blocks, and in the text."""
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    inline = re.findall(r"`(framegate [^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line.partition("  #")[0].strip() for line in blocks.splitlines() if line.startswith("framegate ")] + inline


def test_every_alert_has_a_section_that_says_what_it_means_where_to_look_what_to_type_and_what_to_do() -> None:
    boards = [json.loads(file.read_text()) for file in sorted((deploying.FOLDER / "dashboards").glob("*.json"))]
    titles = {panel["title"] for board in boards for panel in queries.all_panels(board)}
    assert list(sections()) == list(written.NAMES)
    for alert, text in sections().items():
        assert [text.count(word) for word in ("**Means.**", "**Look at.**", "**Type.**", "**Do.**")] == [1, 1, 1, 1], alert
        looked_at = re.findall(r"\*([^*\n]+)\*", text.partition("**Look at.**")[2].partition("**Type.**")[0])
        assert looked_at, alert
        assert set(looked_at) - titles == set(), alert
        assert typed(text.partition("**Type.**")[2].partition("**Do.**")[0]), alert


def test_every_command_of_the_runbook_exists(tmp_path: Path) -> None:
    for text in sections().values():
        for command in typed(text):
            command_lines.parse(command, tmp_path)
