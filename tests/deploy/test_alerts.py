"""The alerts: each fires, does not fire one step below its threshold nor one minute before its time, and recovers. promtool judges."""

import json
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes import command_lines, deploying, monitoring

problems = deploying.module("dashboards.problems")
queries = deploying.module("dashboards.queries")
trouble = deploying.module("dashboards.trouble")
FOLDER = deploying.FOLDER / "alerts"
PROMTOOL = monitoring.program("promtool")
judged = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")
GONE = None
"""No sample: the target is gone."""
Phase = tuple[int, float | None]
"""For so many minutes a gauge has this value, or a counter grows by it each minute."""
Series = Mapping[str, Sequence[Phase]]


def gauge(*phases: Phase) -> str:
    """Values of a gauge, one a minute, as promtool takes them."""
    words = []
    for minutes, value in phases:
        words += ["stale", *["_"] * (minutes - 1)] if value is GONE else [f"{value:.12g}"] * minutes
    return " ".join(words)


def counter(*phases: Phase) -> str:
    """Values of a counter, which grows at the end of each minute."""
    words, value = [], 0.0
    for minutes, growth in phases:
        for _ in range(minutes):
            words.append("_" if growth is GONE else f"{value:.12g}")
            value += growth or 0
    return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One alert.

    Attributes:
        quiet: series that stand at the threshold, or one step below: it never fires.
        loud: series that pass it for a while.
        fires: the minute at which it fires; a minute before it does not.
        recovers: a minute at which it is over.
        also: series of both.
        severity: of the rule, where there are two.
        step: how many minutes a minute of the others stands for.
    """

    alert: str
    quiet: Series
    loud: Series
    fires: int
    recovers: int
    also: Series = field(default_factory=dict)
    severity: str = ""
    step: int = 1


FRAME = 'framegate_frame_forward_duration_seconds_{}{{framegate_listener="kafka", framegate_direction="request"{}}}'
KAFKA = 'framegate_kafka_request_duration_seconds_{}{{framegate_listener="kafka", framegate_api="Produce"{}}}'.replace(
    "framegate_api", "framegate_kafka_api"
)
CONFIG = "framegate_config_revision"


def grows(alert: str, series: str, *, minutes: int = 10) -> Case:
    """It counts something that should not be: one is enough, for so many minutes."""
    return Case(alert=alert, quiet={series: [(60, 0)]}, loud={series: [(5, 0), (1, 1), (54, 0)]}, fires=6, recovers=7 + minutes)


def for_a_while(calm: float, other: float | None) -> list[Phase]:
    """Another value for twenty minutes, from the fifth on."""
    return [(5, calm), (20, other), (35, calm)]


def rises(alert: str, series: str, below: float, above: float, fires: int, *, calm: float = 0, also: Series | None = None) -> Case:
    """A gauge passes a threshold for twenty minutes."""
    return Case(alert=alert, quiet={series: [(60, below)]}, loud={series: for_a_while(calm, above)}, fires=fires, recovers=26, also=also or {})


HOUR = 60
CALM, SPELL = 6 * HOUR, 30


def burns(alert: str, bad: str, good: str, *, among: bool = False) -> list[Case]:
    """Of 1,000 a minute some are refused, of which 0.1 % may be; ``among``: they are among the good ones, too."""

    def made(*phases: tuple[int, float]) -> Series:
        return {bad: [(n, 1000 * share) for n, share in phases], good: [(n, 1000 if among else 1000 - 1000 * share) for n, share in phases]}

    return _burns(alert, made, 0.001)


def slow(alert: str, pattern: str, bound: str) -> list[Case]:
    """Of 1,000 a minute some are slow, of which 1 % may be."""
    every, quick = pattern.format("count", ""), pattern.format("bucket", f', le="{bound}"')
    return _burns(alert, lambda *phases: {every: [(n, 1000) for n, _ in phases], quick: [(n, 1000 - 1000 * share) for n, share in phases]}, 0.01)


def _burns(alert: str, made: Callable[..., Series], budget: float) -> list[Case]:
    """The quick rule: 14.4 times the budget in an hour, or 6 times in six. Of an hour at 50 times it is the 18th minute that makes 14.4.

    The slow one, looked at every 20 minutes: 3 times in a day, or once in three. After a day of calm at 10 times, 2:40 h make a tenth of the time.
    """
    return [
        Case(
            alert=alert,
            severity="critical",
            quiet=made((CALM + HOUR, 5.9 * budget)),
            loud=made((CALM, 0), (SPELL, 50 * budget), (2 * HOUR, 0)),
            fires=CALM + 18,
            recovers=CALM + SPELL + 6,
        ),
        Case(
            alert=alert,
            severity="warning",
            quiet=made((5 * 72, 0.95 * budget)),
            loud=made((72, 0), (36, 10 * budget), (36, 0)),
            fires=72 + 9,
            recovers=72 + 36 + 19,
            step=20,
        ),
    ]


DAY = 86_400
DOWN = 'framegate_upstream_endpoint_down{framegate_upstream="brokers"}'
KNOWN, NO_PORT = (
    f'framegate_broker_count{{framegate_upstream="brokers", framegate_kafka_broker="1", framegate_state="{state}"}}' for state in ("up", "no_port")
)
ADDRESSES: Series = {'framegate_upstream_endpoint_count{framegate_upstream="brokers"}': [(60, 3)]}
CERTIFICATE = 'framegate_tls_certificate_not_after_seconds{framegate_certificate="listener/kafka"}'
RESTARTED: Series = {CONFIG: for_a_while(1, GONE)}
READY = 'framegate_ready{framegate_probe="readiness"}'
BUSY, IDLE = (f'framegate_event_loop_time_seconds_total{{framegate_worker="0", framegate_state="{state}"}}' for state in ("busy", "idle"))
DIED = 'framegate_worker_restarts_total{framegate_reason="died"}'
DEPLETED = "framegate_memory_pool_depleted_time_seconds_total"
EXPORTS = 'framegate_telemetry_exports_total{framegate_signal="metrics"}'
FAILED_EXPORTS = EXPORTS.replace("}", ', error_type="failed"}')
LOST = 'framegate_tap_dropped_total{framegate_reason="disk_full"}'
CASES = [
    Case(alert="FramegateAbsent", quiet={CONFIG: [(5, 1), (9, GONE), (46, 1)]}, loud={CONFIG: [(5, 1), (30, GONE), (25, 1)]}, fires=15, recovers=36),
    Case(alert="FramegateDown", quiet={"up": [(5, 1), (2, 0), (53, 1)]}, loud={"up": for_a_while(1, 0)}, also=RESTARTED, fires=7, recovers=26),
    Case(
        alert="FramegateNotReady",
        quiet={READY: [(60, 0)], "framegate_draining": [(60, 1)]},
        loud={READY: for_a_while(1, 0), "framegate_draining": [(60, 0)]},
        fires=7,
        recovers=26,
    ),
    Case(
        alert="FramegateNotReady",
        quiet={'framegate_ready_ratio{framegate_probe="liveness"}': [(60, 0)], "framegate_draining_ratio": [(60, 0)]},
        loud={'framegate_ready_ratio{framegate_probe="readiness"}': for_a_while(1, 0), "framegate_draining_ratio": [(60, 0)]},
        fires=7,
        recovers=26,
    ),
    rises("FramegateUpstreamGone", DOWN, 2, 3, 6, calm=2, also=ADDRESSES),
    Case(
        alert="FramegateUpstreamDown", quiet={DOWN: [(10, 0), (5, 3), (45, 0)]}, loud={DOWN: for_a_while(0, 1)}, also=ADDRESSES, fires=10, recovers=26
    ),
    Case(alert="FramegateBrokersUnknown", quiet={KNOWN: [(60, 1)]}, loud={KNOWN: for_a_while(1, 0)}, fires=6, recovers=26),
    Case(alert="FramegateBrokerWithoutPort", quiet={NO_PORT: [(10, 0), (5, 1), (45, 0)]}, loud={NO_PORT: for_a_while(0, 1)}, fires=10, recovers=26),
    Case(
        alert="FramegateCertificateEnds",
        quiet={CERTIFICATE: [(60, 3 * DAY + 3_600)]},
        loud={CERTIFICATE: [(30, 3 * DAY + 600), (30, 90 * DAY)]},
        fires=11,
        recovers=31,
    ),
    Case(
        alert="FramegateCertificateEndsSoon",
        quiet={CERTIFICATE: [(90, 3 * DAY), (90, 14 * DAY + 10_800)]},
        loud={CERTIFICATE: [(90, 14 * DAY + 600), (90, 90 * DAY)]},
        fires=71,
        recovers=91,
    ),
    *burns(
        "FramegateConnectionsRefused",
        'framegate_connection_rejected_total{framegate_listener="kafka", framegate_reason="address_connections"}',
        'framegate_connection_accepted_total{framegate_listener="kafka"}',
    ),
    *burns(
        "FramegateLoginsRefused",
        'framegate_authentication_count_total{framegate_listener="kafka", error_type="credentials"}',
        'framegate_authentication_count_total{framegate_listener="kafka"}',
    ),
    *burns(
        "FramegateFramesRefused",
        'framegate_frame_rejected_total{framegate_listener="kafka", framegate_reason="frame_too_large"}',
        'framegate_frame_count_total{framegate_listener="kafka", network_io_direction="receive"}',
    ),
    *burns(
        "FramegateHandshakesFail",
        'framegate_connection_closed_total{framegate_listener="kafka", framegate_cause="tls_failed"}',
        'framegate_connection_accepted_total{framegate_listener="kafka"}',
        among=True,
    ),
    *slow("FramegateForwardSlow", FRAME, "0.01"),
    *slow("FramegateKafkaSlow", KAFKA, "1.0"),
    Case(alert="FramegateMemoryDepleted", quiet={DEPLETED: [(60, 2.99)]}, loud={DEPLETED: [(10, 0), (20, 15.5), (30, 0)]}, fires=16, recovers=36),
    Case(
        alert="FramegateSlowPeers",
        quiet={'framegate_channel_pending{framegate_side="downstream"}': [(9, 3), (1, 2)] * 6},
        loud={'framegate_channel_pending{framegate_side="downstream"}': [(10, 0), (30, 3), (20, 0)]},
        also={'framegate_connection_active{framegate_side="downstream"}': [(60, 100)]},
        fires=25,
        recovers=41,
    ),
    Case(
        alert="FramegateLoopBusy",
        quiet={BUSY: [(60, 53.9)], IDLE: [(60, 6.1)]},
        loud={BUSY: [(10, 1), (30, 60), (20, 1)], IDLE: [(10, 59), (30, 0), (20, 59)]},
        fires=25,
        recovers=46,
    ),
    Case(
        alert="FramegateTapLoses",
        quiet={'framegate_tap_dropped_total{framegate_reason="sampled"}': [(60, 100)], LOST: [(60, 0)]},
        loud={LOST: [(5, 0), (1, 1), (54, 0)]},
        fires=6,
        recovers=12,
    ),
    rises("FramegateTapLags", 'framegate_tap_lag_time_seconds{framegate_consumer="spark"}', 600, 601, 10),
    rises(
        "FramegateTapForgets", 'framegate_tap_lag_bytes{framegate_consumer="spark"}', 800, 801, 10, also={"framegate_tap_limit_bytes": [(60, 1000)]}
    ),
    rises("FramegateTapConsumerUnreadable", "framegate_tap_consumer_unreadable", 0, 1, 10),
    grows("FramegateProcessorRestarts", DIED),
    # the first restart makes the series
    Case(alert="FramegateProcessorRestarts", quiet={DIED: [(60, GONE)]}, loud={DIED: [(5, GONE), (1, 1), (54, 0)]}, fires=6, recovers=17),
    grows("FramegateHandlerRestarts", 'framegate_handler_restarts_total{framegate_reason="timeout"}'),
    Case(
        alert="FramegateHandlerFails",
        quiet={'framegate_handler_requests_total{framegate_listener="kafka", framegate_handler_action="pass"}': [(60, 100)]},
        loud={'framegate_handler_requests_total{framegate_listener="kafka", framegate_handler_action="failed"}': for_a_while(0, 1)},
        fires=11,
        recovers=31,
    ),
    grows("FramegateInternalErrors", 'framegate_processor_errors_total{framegate_place="timer"}'),
    grows("FramegateTaskFailures", 'framegate_task_failures_total{framegate_task="slot"}'),
    grows("FramegateAcceptErrors", 'framegate_accept_errors_total{framegate_listener="kafka", error_type="EMFILE"}', minutes=5),
    Case(
        alert="FramegateDrainStuck",
        quiet={"framegate_drain_time_seconds": [(5, 0), (1, 300), (54, 0)], "framegate_connection_active": [(60, 7)]},
        loud={"framegate_drain_time_seconds": [(5, 300), (20, 301)], "framegate_connection_active": [(10, 7), (15, 0)]},
        fires=5,
        recovers=10,
    ),
    grows("FramegateReloadRefused", 'framegate_reload_count_total{framegate_file_kind="tls", error_type="refused"}'),
    Case(
        alert="FramegateCollectorUnreachable",
        quiet={FAILED_EXPORTS: [(60, 5)], EXPORTS: [(60, 1)]},
        loud={FAILED_EXPORTS: for_a_while(0, 1), EXPORTS: [(25, 0), (35, 1)]},
        fires=11,
        recovers=27,
    ),
    grows("FramegateLogBlocked", "framegate_log_dropped_total"),
    grows(
        "FramegateChangesRefused",
        'rpc_server_call_duration_seconds_count{rpc_method="framegate.control.v1.LimitService/UpdateLimit", error_type="UNAVAILABLE"}',
    ),
]


def rules(name: str = "framegate.yaml") -> list[dict[str, Any]]:
    document = yaml.safe_load((FOLDER / name).read_text())
    (group,) = (document if name == "framegate.yaml" else document["spec"])["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def counts(series: str) -> bool:
    return series.partition("{")[0].endswith(("_total", "_seconds_count", "_seconds_bucket"))


def labelled(series: str) -> str:
    name, _, labels = series.partition("{")
    return f'{name}{{job="framegate", instance="edge-1"{", " if labels else ""}{labels or "}"}'


def unit_test(case: Case, series: Series, firing: Mapping[int, int]) -> dict[str, Any]:
    """A test of promtool: how many fire at which minute."""
    labels = f'alertname="{case.alert}", alertstate="firing"' + (f', severity="{case.severity}"' if case.severity else "")
    return {
        "interval": f"{case.step}m",
        "input_series": [{"series": labelled(name), "values": (counter if counts(name) else gauge)(*phases)} for name, phases in series.items()],
        "promql_expr_test": [
            {
                "expr": f"count(ALERTS{{{labels}}}) or vector(0)",
                "eval_time": f"{minute * case.step}m",
                "exp_samples": [{"labels": "{}", "value": count}],
            }
            for minute, count in firing.items()
        ],
    }


def judge(folder: Path, alert: str, step: int, *tests: Mapping[str, Any]) -> str:
    """What promtool finds wrong in tests of an alert's rules, evaluated every ``step`` minutes; empty: nothing."""
    assert PROMTOOL is not None, "where it is not, this is skipped"
    own = [rule for rule in rules() if rule["alert"] == alert]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "framegate", "rules": own}]}))
    (folder / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": f"{step}m", "tests": [*tests]}))
    done = subprocess.run([PROMTOOL, "test", "rules", str(folder / "tests.yaml")], capture_output=True, text=True, check=False, timeout=150)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def length(series: Series) -> int:
    return max(sum(minutes for minutes, _ in phases) for phases in series.values())


@judged
@pytest.mark.slow  # some burn for days, and promtool evaluates each step
@pytest.mark.timeout(180)
@pytest.mark.parametrize("case", CASES, ids=[f"{number}-{case.alert}" for number, case in enumerate(CASES)])
def test_an_alert_fires_in_time_not_before_nor_below_its_threshold_and_recovers(case: Case, tmp_path: Path) -> None:
    quiet, loud = {**case.also, **case.quiet}, {**case.also, **case.loud}
    end = length(quiet) - 1
    never = unit_test(case, quiet, dict.fromkeys((end // 4, end // 2, end), 0))
    once = unit_test(case, loud, {case.fires - 1: 0, case.fires: 1, case.recovers: 0})
    assert judge(tmp_path, case.alert, case.step, never, once) == ""


def test_every_alert_has_a_case_and_every_case_an_alert() -> None:
    assert {(rule["alert"], rule["labels"]["severity"]) for rule in rules()} == {
        (rule.alert, rule.severity) for problem in trouble.PROBLEMS for rule in problems.rules_of(problem)
    }
    assert {case.alert for case in CASES} == {rule["alert"] for rule in rules()}
    of_two = {problem.alert for problem in trouble.PROBLEMS if problem.budget}
    assert {(case.alert, case.severity) for case in CASES if case.severity} == {
        (alert, level) for alert in of_two for level in ("critical", "warning")
    }


def test_every_alert_says_what_how_much_where_and_what_to_do() -> None:
    for rule in rules():
        notes = rule["annotations"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert notes["runbook_url"] == f"deploy/alerts/RUNBOOK.md#{rule['alert'].lower()}"
        assert notes["description"].startswith(notes["summary"])
        if rule["alert"] != "FramegateAbsent":
            assert "$value" in notes["description"]
            assert "(" in notes["description"].removeprefix(notes["summary"])[:3]
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
    assert list(sections()) == [problem.alert for problem in trouble.PROBLEMS]
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
