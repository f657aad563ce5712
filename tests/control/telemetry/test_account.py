"""What became of exports."""

from control.telemetry.account import Account
from proxy.cells.metrics import EXPORT_ERRORS, METRICS

EXPORTS, DROPPED, SKIPPED = "framegate.telemetry.exports", "framegate.telemetry.dropped", "framegate.telemetry.skipped"


def test_each_end_is_counted_by_its_signal() -> None:
    account = Account()
    for end in ("", "timeout", "timeout"):
        account.export("traces", end)
    account.drop("traces", 5)
    account.drop("traces", 2)
    traces = ("framegate.signal", "traces")
    assert account.measurements() == {
        (EXPORTS, (traces,)): 1,
        (EXPORTS, (traces, ("error.type", "timeout"))): 2,
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


def test_spans_that_were_never_made_are_not_lost() -> None:
    account = Account()
    account.expect("traces")
    assert account.measurements()["framegate.telemetry.skipped", ()] == 0
    account.skip(3)
    account.skip(1)
    assert (account.measurements()["framegate.telemetry.skipped", ()], account.skipped, account.dropped("traces")) == (4, 4, 0)


def test_where_no_spans_are_exported_none_is_skipped() -> None:
    account = Account()
    account.expect("metrics")
    assert ("framegate.telemetry.skipped", ()) not in account.measurements()


def test_the_table_of_metrics_knows_every_end() -> None:
    (metric,) = (metric for metric in METRICS if metric.name == EXPORTS)
    assert dict(metric.attributes)["error.type"] == EXPORT_ERRORS
