"""Tap and Spark: what is captured and lost, who reads how far, and the pipeline's batches."""

from typing import Final

from dashboards.panels import NONE_IS_GOOD, Dashboard, Panel, Query, Row
from dashboards.promql import per_second, quantile, seen, total

__all__ = ["TAP"]

APPEND: Final = "framegate_tap_append_duration_seconds"
REASON: Final = "framegate_reason"
CONSUMER: Final = "framegate_consumer"

_RECORD: Final = (
    Panel(
        title="How many frames are captured?",
        good="As many as rules match, requests and answers.",
        otherwise="`framegate taps list` shows the rules, and which of them are off or expired.",
        queries=(
            Query(per_second("framegate_tap_frames_total{@}", "framegate_direction"), "{{framegate_direction}}"),
            Query(per_second("framegate_tap_matched_total{@}"), "matched by a rule"),
        ),
        unit="cps",
    ),
    Panel(
        title="What is lost, and why?",
        good="Only `sampled`, as a rule demands. `queue_full`: the disk is too slow; `disk_full`: it has no room; `disk_error`: a write failed.",
        otherwise="`framegate tap verify /var/lib/framegate/tap` shows which minutes are not complete; `framegate taps set all --sample-frames "
        "0.1` records less, `framegate taps set all --on-full mute` makes traffic wait instead.",
        queries=(Query(seen(per_second("framegate_tap_dropped_total{@}", REASON), REASON), "{{framegate_reason}}"),),
        unit="cps",
        steps=NONE_IS_GOOD,
    ),
    Panel(
        title="Is the record complete?",
        good="100 %: the log has every frame that a rule matched and did not leave out (sampling).",
        otherwise="`framegate tap verify /var/lib/framegate/tap` shows minutes, reasons and numbers of frames.",
        queries=(
            Query(
                "1 - "
                + per_second('framegate_tap_dropped_total{@, framegate_reason!="sampled"}')
                + " / ("
                + per_second("framegate_tap_matched_total{@}")
                + " > 0)",
                "of what was matched",
            ),
        ),
        unit="percentunit",
        steps=((None, "red"), (1.0, "green")),
        maximum=1.0,
        nothing="no rule matches",
    ),
    Panel(
        title="How far behind is each reader, in time?",
        good="Seconds: the pipeline's trigger.",
        otherwise="`framegate tap consumers list /var/lib/framegate/tap` shows the position of each. Remove a reader that is not needed any "
        "more: `framegate tap consumers remove /var/lib/framegate/tap NAME`.",
        queries=(Query(f"max by ({CONSUMER}) (framegate_tap_lag_time_seconds{{@}})", "{{framegate_consumer}}"),),
        unit="s",
        steps=((None, "green"), (600, "orange")),
        nothing="no readers",
    ),
    Panel(
        title="How far behind is each reader, in bytes?",
        good="Far below the tap's budget: data beyond the budget is deleted, even if it was not read.",
        otherwise="`framegate tap consumers list /var/lib/framegate/tap` shows the readers. Set a larger `tap.budget`, or make the job "
        "faster (`framegate pipeline run --source /var/lib/framegate/tap --output tables --cores 4`).",
        queries=(
            Query(f"sum by ({CONSUMER}) (framegate_tap_lag_bytes{{@}})", "{{framegate_consumer}}"),
            Query(total("framegate_tap_limit_bytes{@}"), "budget"),
        ),
        unit="bytes",
        nothing="no readers",
    ),
    Panel(
        title="How long does the disk take for a block?",
        good="99 of 100 within 10 ms.",
        otherwise="`framegate doctor` writes a test file to the tap's disk, and states the time and the free space.",
        queries=(Query(quantile(0.5, APPEND), "half"), Query(quantile(0.99, APPEND), "99 %")),
        unit="s",
        steps=((None, "green"), (0.1, "orange")),
    ),
)
_SPARK: Final = Row(
    title="And those who read it?",
    panels=(
        Panel(
            title="How long does a batch take?",
            good="Less than the trigger.",
            otherwise="`framegate pipeline run --source /var/lib/framegate/tap --output tables --cores 4 --memory 2g` gives the job more; the job's "
            "own log shows which step takes long.",
            queries=(
                Query(quantile(0.5, "framegate_pipeline_batch_duration_seconds"), "half"),
                Query(quantile(0.99, "framegate_pipeline_batch_duration_seconds"), "99 %"),
            ),
            unit="s",
            nothing="the job exports nothing",
        ),
        Panel(
            title="Which minutes are complete?",
            good="Only `complete`, and `open` for the last ones.",
            otherwise="`framegate tap verify /var/lib/framegate/tap` shows the reasons; so do the tables `completeness` and `gaps`.",
            queries=(Query(per_second("framegate_pipeline_minutes_total{@}", "framegate_state"), "{{framegate_state}}"),),
            unit="cps",
            nothing="the job exports nothing",
        ),
        Panel(
            title="Which readers' files cannot be read?",
            good="None. Data that such a reader may need is kept until the budget is full.",
            otherwise="`framegate tap consumers list /var/lib/framegate/tap` names them; `framegate tap consumers remove /var/lib/framegate/tap "
            "spark` removes one.",
            queries=(Query(total("framegate_tap_consumer_unreadable{@}"), "files"),),
            unit="short",
            steps=NONE_IS_GOOD,
        ),
    ),
)

TAP: Final = Dashboard(
    slug="tap",
    title="Tap and Spark: is the record complete?",
    description="Frames captured and lost, the positions of the readers, and the pipeline's batches.",
    panels=_RECORD,
    rows=(_SPARK,),
)
