"""Tap and Spark: what is captured and lost, who reads how far, and the pipeline's batches."""

from typing import Final

from dashboards.panels import NONE_IS_GOOD, Dashboard, Panel, Query, Row
from dashboards.promql import per_second, quantile, seen, total

__all__ = ["TAP"]

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
        unit="suffix: frames/s",
    ),
    Panel(
        title="What is lost, and why?",
        good="Only `sampled`, as a rule demands. `queue_full`: the disk is too slow; `disk_full`: it has no room; `disk_error`: a write failed.",
        otherwise="`framegate tap verify /var/lib/framegate/tap` shows which minutes are not complete; `framegate taps set all --sample-frames "
        "0.1` records less, `framegate taps set all --on-full mute` makes traffic wait instead.",
        queries=(Query(seen(per_second("framegate_tap_dropped_total{@}", REASON), REASON), "{{framegate_reason}}"),),
        unit="suffix: frames/s",
        steps=NONE_IS_GOOD,
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
        title="How much room has the disk?",
        good="`free` above a twentieth of the disk, and the log below its budget.",
        otherwise="`framegate doctor` writes a test file to the tap's disk, and states the time and the free space; `framegate taps set all "
        "--max-frame-bytes 256` records less.",
        queries=(
            Query("min(framegate_tap_disk_free_bytes{@})", "free"),
            Query(total("framegate_tap_usage_bytes{@}"), "the log"),
            Query(total("framegate_tap_limit_bytes{@}"), "its budget"),
        ),
        unit="bytes",
        nothing="no tap",
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
            unit="suffix: minutes/s",
            nothing="the job exports nothing",
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
