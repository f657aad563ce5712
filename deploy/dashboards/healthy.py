"""Is it healthy? A green panel, or the reasons in words; then a few numbers."""

import functools
from typing import Final

from dashboards.panels import LEVELS, NONE_IS_GOOD, Dashboard, Panel, Query, Row
from dashboards.problems import problem_table, problem_words
from dashboards.promql import per_second, quantile, total
from dashboards.trouble import FRAMES, LOST, NO_FRAME, NO_HANDSHAKE, NO_LOGIN, PROBLEMS, READY, TURNED_AWAY

__all__ = ["HEALTHY"]

REFUSALS: Final = "\nor ".join(
    f'label_replace(sum({query}), "kind", "{kind}", "", "")'
    for query, kind in ((TURNED_AWAY, "connections"), (NO_HANDSHAKE, "handshakes"), (NO_LOGIN, "logins"), (NO_FRAME, "frames"))
)

STARTED: Final = "framegate_worker_restarts_total{@}"
RESTARTS: Final = f"sum(increase({STARTED}[$__range]) > 0 or {STARTED} unless {STARTED} offset $__range) or on () vector(0)"

_LOOK: Final = (
    Panel(
        title="Is everything fine?",
        good="Green. Otherwise it names the problems: act on red at once, on orange today; blue is for information. A problem is shown as soon as "
        "it exists; the alert of the same name fires when the problem persists.",
        otherwise="The table beside it names the places. Run there `framegate doctor`, which examines the environment, and `framegate "
        "status`, which examines framegate.",
        queries=(Query(problem_words(PROBLEMS), "{{problem}}"),),
        unit="short",
        kind="words",
        steps=LEVELS,
        width=8,
        height=9,
        next="hurts",
    ),
    Panel(
        title="What is it exactly, and where?",
        good="One line that says that everything is fine. Otherwise a line for each place: the problem, its extent, and the alert's name. "
        "The section of that name in deploy/alerts/RUNBOOK.md states what to do.",
        otherwise="Follow the runbook's section. For details: `framegate status`, and `framegate channels list` for the connections.",
        queries=(Query(problem_table(PROBLEMS)),),
        unit="short",
        kind="table",
        width=16,
        height=9,
        decimals=2,
        next="hurts",
        columns=(
            ("problem", "Problem", 240),
            ("where", "Of", 100),
            ("Value", "How much", 90),
            ("measure", "Measure", 140),
            ("instance", "Node", 100),
            ("pod", "Pod", 90),
            ("alert", "Runbook", 230),
        ),
    ),
)
_number: Final = functools.partial(Panel, kind="stat", width=4, height=5)
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
        title="How much passes?",
        good="Frames a second received, of both sides, about as many as at the same time yesterday.",
        otherwise="None at all: `framegate channels list` shows whether clients are connected, and what mutes them.",
        queries=(Query(f"sum({FRAMES})"),),
        unit="cps",
        next="traffic",
    ),
    _number(
        title="How much is refused?",
        good="0 a second, of connections, handshakes, logins and frames.",
        otherwise="`framegate channels list --closed` has the cause of each; `framegate limits get` shows what is allowed.",
        queries=(Query(f"sum({REFUSALS}) or on () vector(0)"),),
        unit="cps",
        steps=NONE_IS_GOOD,
        next="hurts",
    ),
    _number(
        title="How slow is a frame?",
        good="99 of 100 frames pass within a few milliseconds, from the read to the write of their last byte on the other side.",
        otherwise="`framegate pool get` shows which connections hold memory, `framegate channels list` which are muted for a slow peer (`peer`).",
        queries=(Query(quantile(0.99, "framegate_frame_forward_duration_seconds", "{@l}")),),
        unit="s",
        steps=((None, "green"), (0.01, "orange"), (0.1, "red")),
        next="traffic",
    ),
    _number(
        title="How full is the memory?",
        good="Below 80 % of the pool. At 100 % large frames wait; small ones still pass.",
        otherwise="`framegate pool get --top 10` shows which connections hold it; `framegate pool set --size 512MiB` makes it larger.",
        queries=(Query(f"{total('framegate_memory_pool_usage_bytes{@}')} / {total('framegate_memory_pool_limit_bytes{@}')}"),),
        unit="percentunit",
        steps=((None, "green"), (0.8, "orange"), (0.95, "red")),
        maximum=1.0,
        next="hurts",
    ),
    _number(
        title="How far behind are the tap's readers?",
        good="Seconds: as long as the pipeline's trigger.",
        otherwise="`framegate tap consumers list /var/lib/framegate/tap` shows the position of each reader. Check that the Spark job runs; "
        "its own log has its errors.",
        queries=(Query("max(framegate_tap_lag_time_seconds{@})"),),
        unit="s",
        steps=((None, "green"), (60, "orange"), (600, "red")),
        width=8,
        next="tap",
        nothing="no readers",
    ),
    _number(
        title="How many frames does the tap lose?",
        good="0 a second. Frames that a rule leaves out (sampling) do not count as lost.",
        otherwise="`framegate tap verify /var/lib/framegate/tap` shows which minutes are not complete, and why; `framegate taps list` shows the "
        "rules.",
        queries=(Query(per_second(LOST)),),
        unit="cps",
        steps=NONE_IS_GOOD,
        width=8,
        next="tap",
    ),
    _number(
        title="How many restarts?",
        good="0: no processor was started again in the time that is shown.",
        otherwise="`framegate pool get` counts the restarts of each; the row `processor_died` has the exit code.",
        queries=(Query(RESTARTS),),
        unit="short",
        steps=((None, "green"), (0.5, "orange"), (3, "red")),
        width=8,
        decimals=0,
        next="control",
    ),
)
_HISTORY: Final = Row(
    title="Since when?",
    panels=(
        Panel(
            title="Which problems were there, and when?",
            good="None: only the line that everything is fine. The height is how bad it is: 1 worth knowing, 2 today, 3 now.",
            otherwise="Look at the same moment on the dashboard that the problem belongs to; `framegate channels list --closed` remembers 1,000 "
            "ends.",
            queries=(Query(problem_words(PROBLEMS), "{{problem}}"),),
            unit="short",
            width=24,
            height=9,
            maximum=3,
            decimals=0,
        ),
    ),
)

HEALTHY: Final = Dashboard(
    slug="healthy",
    title="Is it healthy?",
    description="One look: green, or the reasons in words. Then the few numbers, each with a link to the dashboard that explains it.",
    panels=_LOOK + _NUMBERS,
    rows=(_HISTORY,),
)
