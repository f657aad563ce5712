"""Tap and Spark: what is captured and lost, who reads how far, and the pipeline's batches."""

from typing import Final

from dashboards.panels import NONE_IS_GOOD, Dashboard, Panel, Query, Row
from dashboards.promql import per_second, quantile, total

__all__ = ["TAP"]

APPEND: Final = "framegate_tap_append_duration_seconds"
REASON: Final = "framegate_reason"
CONSUMER: Final = "framegate_consumer"

_RECORD: Final = (
    Panel(
        title="How many frames are captured?",
        good="As many as rules match, requests and answers.",
        otherwise="`framegate taps list` shows the rules with what each took, and which turned itself off.",
        queries=(
            Query(per_second("framegate_tap_frames_total{@}", "framegate_direction"), "{{framegate_direction}}"),
            Query(per_second("framegate_tap_matched_total{@}"), "matched by a rule"),
        ),
        unit="cps",
    ),
    Panel(
        title="What is lost, and why?",
        good="Nothing but `sampled`, which a rule asked for. `queue_full`: the disk is too slow; `disk_full`, `disk_error`: as they say.",
        otherwise="`framegate tap verify /var/lib/framegate/tap` says which minutes are not complete; `framegate taps set all --sample-frames "
        "0.1` takes less, "
        "`framegate taps set all --on-full mute` has traffic wait instead.",
        queries=(Query(f"{per_second('framegate_tap_dropped_total{@}', REASON)} > 0 or on () vector(0)", "{{framegate_reason}}"),),
        unit="cps",
        steps=NONE_IS_GOOD,
    ),
    Panel(
        title="Is the record complete?",
        good="100 %: of the frames that rules matched, and were not sampled out, the log has each.",
        otherwise="`framegate tap verify /var/lib/framegate/tap` names minutes, reasons and how many.",
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
        otherwise="`framegate tap consumers list /var/lib/framegate/tap` says where each is; one that is gone for good: `framegate tap consumers "
        "remove "
        "/var/lib/framegate/tap NAME`.",
        queries=(Query(f"max by ({CONSUMER}) (framegate_tap_lag_time_seconds{{@}})", "{{framegate_consumer}}"),),
        unit="s",
        steps=((None, "green"), (600, "orange")),
        nothing="nobody reads",
    ),
    Panel(
        title="How far behind is each reader, in bytes?",
        good="Far below the tap's budget: what is beyond it is deleted, read or not.",
        otherwise="`framegate tap consumers list /var/lib/framegate/tap`; a larger `tap.budget`, or a faster job (`framegate pipeline run "
        "--source /var/lib/framegate/tap --output tables --cores 4`).",
        queries=(
            Query(f"sum by ({CONSUMER}) (framegate_tap_lag_bytes{{@}})", "{{framegate_consumer}}"),
            Query(total("framegate_tap_limit_bytes{@}"), "budget"),
        ),
        unit="bytes",
        nothing="nobody reads",
    ),
    Panel(
        title="How full is the tap's budget?",
        good="Up to 100 %, when what is old was read: retention keeps it there.",
        otherwise="`framegate tap ls /var/lib/framegate/tap` shows streams, sizes and who reads them.",
        queries=(
            Query(total("framegate_tap_usage_bytes{@}"), "on disk"),
            Query(total("framegate_tap_limit_bytes{@}"), "budget"),
        ),
        unit="bytes",
    ),
    Panel(
        title="How fast does the log grow?",
        good="Slower than the disk writes.",
        otherwise="`framegate taps list` shows which rule takes how much; `framegate taps set all --max-frame-bytes 256` cuts frames.",
        queries=(
            Query(per_second("framegate_tap_io_bytes_total{@}"), "written"),
            Query(per_second("framegate_tap_matched_io_bytes_total{@}"), "matched"),
        ),
        unit="binBps",
    ),
    Panel(
        title="How long does the disk take for a block?",
        good="99 of 100 within 10 ms.",
        otherwise="`framegate doctor` writes to the tap's disk and says how long it took and what is free.",
        queries=(Query(quantile(0.5, APPEND), "half"), Query(quantile(0.99, APPEND), "99 %")),
        unit="s",
        steps=((None, "green"), (0.1, "orange")),
    ),
    Panel(
        title="What waits to be written?",
        good="A few blocks. When the queue is full frames are lost, or wait where the rule says `on_full: mute`.",
        otherwise="`framegate pool get` shows the queue beside the pool; the disk is too slow, or a rule takes too much: `framegate taps list`.",
        queries=(Query(total('framegate_queue_usage_bytes{@, framegate_queue="tap"}'), "bytes"),),
        unit="bytes",
    ),
)
_SPARK: Final = Row(
    title="And Spark?",
    panels=(
        Panel(
            title="How long does a batch take?",
            good="Less than the trigger.",
            otherwise="`framegate pipeline run --source /var/lib/framegate/tap --output tables --cores 4 --memory 2g` gives it more; the job's "
            "own log says what takes long.",
            queries=(
                Query(quantile(0.5, "framegate_pipeline_batch_duration_seconds"), "half"),
                Query(quantile(0.99, "framegate_pipeline_batch_duration_seconds"), "99 %"),
            ),
            unit="s",
            nothing="the job exports nothing",
        ),
        Panel(
            title="How many frames get into the tables?",
            good="As many as are captured, over some minutes.",
            otherwise="`framegate tap consumers list /var/lib/framegate/tap` says how far the job is behind.",
            queries=(
                Query(per_second("framegate_pipeline_frames_total{@}"), "into the tables"),
                Query(per_second("framegate_tap_frames_total{@}"), "into the log"),
            ),
            unit="cps",
        ),
        Panel(
            title="Which minutes are complete?",
            good="Only `complete`, and `open` for the last ones.",
            otherwise="`framegate tap verify /var/lib/framegate/tap`; in the tables, `completeness` and `gaps` say the same.",
            queries=(Query(per_second("framegate_pipeline_minutes_total{@}", "framegate_state"), "{{framegate_state}}"),),
            unit="cps",
            nothing="the job exports nothing",
        ),
    ),
)
_MORE: Final = Row(
    title="And the files?",
    panels=(
        Panel(
            title="Which writes failed?",
            good="None.",
            otherwise="`framegate doctor` looks at the tap's disk; `framegate tap ls /var/lib/framegate/tap --segments` shows what is there.",
            queries=(
                Query(per_second("framegate_tap_write_errors_total{@}"), "errors"),
                Query(
                    per_second(APPEND + '_count{@, error_type!=""}', "error_type") + " or on () vector(0)",
                    "blocks not written {{error_type}}",
                ),
            ),
            unit="cps",
            steps=NONE_IS_GOOD,
            width=12,
        ),
        Panel(
            title="Which readers' files cannot be read?",
            good="None: what such a reader may need is kept until the budget is full.",
            otherwise="`framegate tap consumers list /var/lib/framegate/tap` names them; `framegate tap consumers remove /var/lib/framegate/tap "
            "spark` forgets one.",
            queries=(Query(total("framegate_tap_consumer_unreadable{@}"), "files"),),
            unit="short",
            steps=NONE_IS_GOOD,
            width=12,
        ),
    ),
)

TAP: Final = Dashboard(
    slug="tap",
    title="Tap and Spark: is the record complete?",
    description="What is captured and what is lost, how far its readers are, and how the pipeline does.",
    panels=_RECORD,
    rows=(_SPARK, _MORE),
)
