"""What became of exports."""

from framegate.control.telemetry.account import Account
from framegate.proxy.cells.metrics import EXPORT_ERRORS, METRICS

EXPORTS, DROPPED, SKIPPED = "framegate.telemetry.exports", "framegate.telemetry.dropped", "framegate.telemetry.skipped"


def test_each_end_is_counted_by_its_signal() -> None:
    account = Account()
    for end in ("", "failed", "failed"):
        account.export("traces", end)
    account.drop("traces", 5)
    account.drop("traces", 2)
    traces = ("framegate.signal", "traces")
    assert account.measurements() == {
        (EXPORTS, (traces,)): 1,
        (EXPORTS, (traces, ("error.type", "failed"))): 2,
        (DROPPED, (traces,)): 7,
        (SKIPPED, ()): 0,
    }
    assert account.dropped("traces") == 7


def test_a_signal_has_its_series_before_anything_happens_and_nothing_lost_makes_none() -> None:
    account = Account()
    account.drop("logs", 0)
    assert account.measurements() == {}
    account.expect("logs")
    assert account.measurements() == {(EXPORTS, (("framegate.signal", "logs"),)): 0, (DROPPED, (("framegate.signal", "logs"),)): 0}


def test_the_table_of_metrics_knows_every_end() -> None:
    (metric,) = (metric for metric in METRICS if metric.name == EXPORTS)
    assert dict(metric.attributes)["error.type"] == EXPORT_ERRORS
