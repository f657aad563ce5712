"""Control: calls, changes, revisions, the log, telemetry itself, and what the processes take."""

from typing import Final

from dashboards.panels import NONE_IS_GOOD, Dashboard, Panel, Query
from dashboards.promql import method, per_second, seen, total

__all__ = ["CONTROL"]

CALLS: Final = "rpc_server_call_duration_seconds"
OURS: Final = 'rpc_method=~"framegate.*"'
PROCESS: Final = "framegate_process"

_CALLS: Final = (
    Panel(
        title="Which calls fail?",
        good="None. `UNAVAILABLE`: a change cannot be audited (`AUDIT_BLOCKED`: standard output cannot be written), or no processor answers.",
        otherwise="Repeat the call by hand; the command states the reason. Begin with `framegate status`; deploy/docs/errors-and-causes.md "
        "has the exit codes.",
        queries=(
            Query(
                method(seen(per_second(f'{CALLS}_count{{@, {OURS}, error_type!=""}}', "rpc_method, error_type"), "error_type")),
                "{{method}} {{error_type}}",
            ),
        ),
        unit="suffix: calls/s",
        steps=NONE_IS_GOOD,
    ),
    Panel(
        title="Is every row written?",
        good="Yes: 0. Rows are dropped when standard output cannot be written; changes are refused then.",
        otherwise="Check the reader of the log (the container runtime, journald). `framegate status` still answers.",
        queries=(
            Query(f"{per_second('framegate_log_dropped_total{@}')} or on () vector(0)", "by standard output"),
            Query(per_second("framegate_link_dropped_total{@}"), "between processor and control"),
        ),
        unit="suffix: rows/s",
        steps=NONE_IS_GOOD,
    ),
    Panel(
        title="Do exports arrive?",
        good="`metrics`, `traces` and `logs` without `failed` behind them.",
        otherwise="The rows `library_log` have the reason; `framegate doctor` sends each collector an empty export.",
        queries=(
            Query(
                seen(per_second("framegate_telemetry_exports_total{@}", "framegate_signal, error_type"), "framegate_signal"),
                "{{framegate_signal}} {{error_type}}",
            ),
            Query(
                seen(per_second("framegate_telemetry_dropped_total{@}", "framegate_signal"), "framegate_signal"), "items dropped {{framegate_signal}}"
            ),
        ),
        unit="suffix: exports/s",
    ),
    Panel(
        title="What was started again, and what failed?",
        good="Nothing.",
        otherwise="`framegate pool get` and `framegate handlers list` count the restarts of each; the rows `processor_died`, `handler_died`, "
        "`internal_error` and `task_failed` say why.",
        queries=(
            Query(seen(total("framegate_worker_restarts_total{@}", "framegate_reason"), "framegate_reason"), "processors {{framegate_reason}}"),
            Query(
                seen(total("framegate_handler_restarts_total{@}", "framegate_reason"), "framegate_reason"),
                "handler processes {{framegate_reason}}",
            ),
            Query(seen(total("framegate_processor_errors_total{@}", "framegate_place"), "framegate_place"), "errors {{framegate_place}}"),
            Query(seen(total("framegate_task_failures_total{@}", "framegate_task"), "framegate_task"), "control {{framegate_task}}"),
        ),
        unit="short",
        width=12,
        decimals=0,
    ),
    Panel(
        title="How much memory does it take?",
        good="Below the container's limit, and flat. Pages that processes share are counted in each.",
        otherwise="`framegate pool get` shows the memory that traffic holds; `framegate status` warns when the configuration may need more "
        "memory than the container has.",
        queries=(Query(total('process_memory_usage_bytes{@, framegate_process!=""}', PROCESS), "{{framegate_process}}"),),
        unit="bytes",
        width=12,
        stacked=True,
        next="hurts",
    ),
)

CONTROL: Final = Dashboard(
    slug="control",
    title="Control: what does framegate itself do?",
    description="Calls, changes, revisions, the log and telemetry; the memory of the processes.",
    panels=_CALLS,
)
