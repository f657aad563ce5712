"""Control: calls, changes, revisions, the log, telemetry itself, and what the processes take."""

from typing import Final

from dashboards.panels import NONE_IS_GOOD, Dashboard, Panel, Query, Row
from dashboards.promql import per_second, quantile, total

__all__ = ["CONTROL"]

CALLS: Final = "rpc_server_call_duration_seconds"
OURS: Final = 'rpc_method=~"framegate.*"'
PROCESS: Final = "framegate_process"

_CALLS: Final = (
    Panel(
        title="Who calls the control plane, and what for?",
        good="Your own hands and programs.",
        otherwise="The rows `audit` of the log name who changed what; `framegate status` shows what is in force.",
        queries=(Query(per_second(f"{CALLS}_count{{@, {OURS}}}", "rpc_method") + " or on () vector(0)", "{{rpc_method}}"),),
        unit="cps",
        stacked=True,
    ),
    Panel(
        title="Which calls fail?",
        good="None. `UNAVAILABLE`: a change cannot be audited (`AUDIT_BLOCKED`: nobody reads standard output), or no processor answers.",
        otherwise='Ask again by hand, it says why in words: `framegate status`; exit codes are in README\'s "Operating".',
        queries=(
            Query(
                per_second(f'{CALLS}_count{{@, {OURS}, error_type!=""}}', "rpc_method, error_type") + " or on () vector(0)",
                "{{rpc_method}} {{error_type}}",
            ),
        ),
        unit="cps",
        steps=NONE_IS_GOOD,
    ),
    Panel(
        title="How long does a call take?",
        good="99 of 100 within some ms; a change waits for busy processors. A drain waits for its connections.",
        otherwise="`framegate status` shows processors whose heart stands still.",
        queries=(Query(quantile(0.99, CALLS, f"{{@, {OURS}}}", "rpc_method"), "99 %, {{rpc_method}}"),),
        unit="s",
        nothing="no calls",
    ),
    Panel(
        title="What was changed?",
        good="What you changed.",
        otherwise="`framegate limits get`, `framegate pool get` and `framegate taps list` show what is in force; the file is what counts at a start.",
        queries=(
            Query(per_second('framegate_config_changes_total{@, error_type=""}') + " or on () vector(0)", "made"),
            Query(per_second('framegate_config_changes_total{@, error_type!=""}', "error_type") + " or on () vector(0)", "{{error_type}}"),
        ),
        unit="cps",
    ),
    Panel(
        title="Which revision is in force, and where?",
        good="The same number in all replicas: each change of a running framegate is one more, so a replica that lags behind was not changed, or "
        "is younger.",
        otherwise="`framegate limits get` in each of those that differ; a change by hand holds in one framegate until its end.",
        queries=(Query("framegate_config_revision{@}", "{{instance}} {{pod}}"),),
        unit="none",
        decimals=0,
    ),
    Panel(
        title="Is every row written?",
        good="Yes: 0. Rows are dropped when nobody reads standard output; changes are refused then.",
        otherwise="Look at who reads the log (the container runtime, journald); `framegate status` answers all the same.",
        queries=(
            Query(f"{per_second('framegate_log_dropped_total{@}')} or on () vector(0)", "by standard output"),
            Query(per_second("framegate_link_dropped_total{@}"), "between processor and control"),
        ),
        unit="cps",
        steps=NONE_IS_GOOD,
    ),
    Panel(
        title="Do exports arrive?",
        good="`metrics`, `traces` and `logs` without a reason behind them.",
        otherwise="`unavailable`, `timeout`: the collector. `refused`: its answer says why, in the log. Is `telemetry.otlp.endpoint` right? "
        "`framegate doctor`.",
        queries=(
            Query(
                f"{per_second('framegate_telemetry_exports_total{@}', 'framegate_signal, error_type')} or on () vector(0)",
                "{{framegate_signal}} {{error_type}}",
            ),
            Query(
                f"{per_second('framegate_telemetry_dropped_total{@}', 'framegate_signal')} or on () vector(0)", "items dropped {{framegate_signal}}"
            ),
        ),
        unit="cps",
    ),
    Panel(
        title="How much processor time does it take?",
        good="Below what the container has. 1 is one core.",
        otherwise="`framegate pool set --processors 3` uses another core; `framegate doctor` says whether the container is throttled.",
        queries=(Query(per_second("process_cpu_time_seconds_total{@, framegate_process!=" + '""}', PROCESS), "{{framegate_process}}"),),
        unit="short",
        stacked=True,
        decimals=2,
        next="hurts",
    ),
    Panel(
        title="How much memory does it take?",
        good="Below the container's limit, and flat. Pages that processes share are counted in each.",
        otherwise="`framegate pool get` says what traffic holds, `framegate status` warns when the configuration may need more than there is.",
        queries=(Query(total('process_memory_usage_bytes{@, framegate_process!=""}', PROCESS), "{{framegate_process}}"),),
        unit="bytes",
        stacked=True,
        next="hurts",
    ),
)
_OWN: Final = Row(
    title="Is anything wrong with framegate itself?",
    panels=(
        Panel(
            title="What was started again?",
            good="Nothing.",
            otherwise="`framegate status` and `framegate handlers list` say how often and why.",
            queries=(
                Query("sum by (framegate_reason) (framegate_worker_restarts_total{@}) or on () vector(0)", "processors {{framegate_reason}}"),
                Query("sum by (framegate_reason) (framegate_handler_restarts_total{@}) or on () vector(0)", "handler processes {{framegate_reason}}"),
            ),
            unit="short",
            decimals=0,
        ),
        Panel(
            title="Which errors of our own were caught?",
            good="None. Each cost one connection, timer, command or row; the rows `internal_error` and `task_failed` have the traceback.",
            otherwise="It is a fault of framegate: report it with the row; `framegate --version` says which build it is.",
            queries=(
                Query("sum by (framegate_place) (framegate_processor_errors_total{@})", "{{framegate_place}}"),
                Query("sum by (framegate_task) (framegate_task_failures_total{@}) or on () vector(0)", "control {{framegate_task}}"),
            ),
            unit="short",
            steps=NONE_IS_GOOD,
            decimals=0,
        ),
        Panel(
            title="Who drains, and for how long?",
            good="Nobody, or shorter than `drain.timeout`.",
            otherwise="`framegate channels list` shows who is still there; `framegate drain --timeout 10s --accept refuse` ends it sooner.",
            queries=(Query("framegate_drain_time_seconds{@}", "{{instance}} {{pod}}"),),
            unit="s",
            steps=((None, "green"), (300, "red")),
        ),
    ),
)
_PROCESSES: Final = Row(
    title="What do the processes hold?",
    panels=(
        Panel(
            title="How many descriptors are open?",
            good="Two for each connection with an upstream, and some.",
            otherwise="`framegate doctor` compares the limit with the configuration.",
            queries=(Query(total('process_unix_file_descriptor_count{@, framegate_process!=""}', PROCESS), "{{framegate_process}}"),),
            unit="short",
            stacked=True,
        ),
        Panel(
            title="How long do scrapes take?",
            good="Below 0.1 s.",
            otherwise="Refused scrapes asked for nothing in time, or were too many; `framegate doctor` looks at the machine.",
            queries=(
                Query("scrape_duration_seconds{@} and on (job, instance) framegate_config_revision{@}", "scrape of {{instance}} {{pod}}"),
                Query(per_second("framegate_scrape_refused_total{@}"), "refused a second"),
            ),
            unit="s",
        ),
        Panel(
            title="How long does it run, and how often does Python collect?",
            good="As long as you think; a few collections a second.",
            otherwise="It began anew: `kubectl` shows the container's last state, `framegate status` when it started.",
            queries=(
                Query('max by (instance, pod) (process_uptime_seconds{@, framegate_process="control"})', "runs since, {{instance}} {{pod}}"),
                Query(
                    per_second("cpython_gc_collections_total{@}", "cpython_gc_generation"),
                    "collections a second, generation {{cpython_gc_generation}}",
                ),
            ),
            unit="s",
        ),
    ),
)

CONTROL: Final = Dashboard(
    slug="control",
    title="Control: what does framegate itself do?",
    description="Calls, changes, revisions, the log and telemetry; what its processes take.",
    panels=_CALLS,
    rows=(_OWN, _PROCESSES),
)
