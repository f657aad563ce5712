"""Is it healthy? A green panel, or the reasons in words, since when, and where; then a few numbers."""

import functools
from typing import Final

from dashboards.panels import LEVELS, Dashboard, Panel, Query
from dashboards.problems import problem_table, problem_words
from dashboards.promql import per_second, quantile, total

__all__ = ["HEALTHY"]

READY: Final = total('framegate_ready{@, framegate_probe="readiness"}', "job, instance, pod")

_LOOK: Final = (
    Panel(
        title="Is everything fine?",
        good="Green. Otherwise it names the problems: act on red at once, on orange today; blue is for information. A problem is shown as soon as "
        "it exists; the alert fires when it persists.",
        otherwise="The table names the places. There `framegate status` says the same from inside, with the command to run next.",
        queries=(Query(problem_words(), "{{problem}}"),),
        unit="short",
        kind="words",
        steps=LEVELS,
        width=9,
        height=7,
        next="hurts",
    ),
    Panel(
        title="Since when?",
        good="One green line.",
        otherwise="Look at the same moment on the dashboard that the problem belongs to; `framegate channels list --closed` remembers 1,000 ends.",
        queries=(Query(problem_words(), "{{problem}}"),),
        unit="short",
        kind="states",
        steps=LEVELS,
        width=15,
        height=7,
        next="hurts",
    ),
    Panel(
        title="What is it exactly, and where?",
        good="One line that says that everything is fine. Otherwise a line for each place: the problem, its extent, and the alert.",
        otherwise="The section of that name in deploy/alerts/RUNBOOK.md states what to do. For details: `framegate status`.",
        queries=(Query(problem_table()),),
        unit="short",
        kind="table",
        width=24,
        height=6,
        decimals=2,
        next="hurts",
        columns=(
            ("problem", "Problem", 400),
            ("where", "Where", 300),
            ("Value", "How much", 95),
            ("measure", "Measure", 135),
            ("instance", "Instance", 130),
            ("pod", "Pod", 90),
            ("alert", "Runbook", 240),
        ),
    ),
)
_number: Final = functools.partial(Panel, kind="stat", width=4, height=4)
_NUMBERS: Final = (
    _number(
        title="Are all ready?",
        good="Every framegate is ready: 100 %. A framegate that drains is not ready, as intended.",
        otherwise="`framegate status` states why it is not ready; a framegate that drains was told to by `framegate drain` or SIGTERM.",
        queries=(Query(f"sum({READY}) / count({READY})"),),
        unit="percentunit",
        steps=((None, "red"), (1.0, "green")),
        maximum=1.0,
        next="control",
    ),
    _number(
        title="How many clients?",
        good="About as many clients as there are at this time of day.",
        otherwise="`framegate channels list --limit 50` shows the open connections, `framegate channels list --closed` those that ended, and why.",
        queries=(Query(total('framegate_connection_active{@l, framegate_side="downstream"}')),),
        unit="short",
        next="traffic",
    ),
    _number(
        title="How many requests?",
        good="About as many a second as at the same time yesterday.",
        otherwise="None at all: `framegate channels list` shows whether clients are connected, and what mutes them.",
        queries=(Query(per_second('framegate_frame_count_total{@l, framegate_side="downstream", network_io_direction="receive"}')),),
        unit="suffix: frames/s",
        next="traffic",
    ),
    _number(
        title="How slow is a frame?",
        good="99 of 100 frames pass within a few milliseconds, from their arrival to the write of their last byte on the other side.",
        otherwise="`framegate channels list` shows which are muted, and why; `framegate doctor` whether the container is throttled.",
        queries=(Query(quantile(0.99, "framegate_frame_forward_duration_seconds", "{@l}")),),
        unit="s",
        steps=((None, "green"), (0.01, "orange"), (0.1, "red")),
        next="traffic",
    ),
    _number(
        title="How full is memory?",
        good="Below 90 % of the container's limit, handlers included.",
        otherwise="`framegate status` shows what framegate takes and may need; `framegate handlers list` what handlers take.",
        queries=(Query("max(framegate_memory_usage_bytes{@} / framegate_memory_limit_bytes{@})"),),
        unit="percentunit",
        steps=((None, "green"), (0.8, "orange"), (0.9, "red")),
        maximum=1.0,
        next="hurts",
    ),
    _number(
        title="Do readers lag?",
        good="Seconds: as long as the pipeline's trigger.",
        otherwise="`framegate tap consumers list /var/lib/framegate/tap` shows the position of each reader.",
        queries=(Query("max(framegate_tap_lag_time_seconds{@})"),),
        unit="s",
        steps=((None, "green"), (60, "orange"), (600, "red")),
        next="tap",
        nothing="no readers",
    ),
)

HEALTHY: Final = Dashboard(
    slug="healthy",
    title="Is it healthy?",
    description="One look: green, or the reasons in words. Then the few numbers, each with a link to the dashboard that explains it.",
    panels=_LOOK + _NUMBERS,
)
