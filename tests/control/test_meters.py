import pytest

from control.meters import Meters
from proxy.cells import METRICS


def test_counters_are_shown_under_full_names_without_empty_attributes() -> None:
    meters = Meters()
    meters.add("worker.restarts", "died")
    meters.add("worker.restarts", "died", amount=2)
    meters.add("config.changes", "")
    meters.gauge("tap.limit", lambda: 7.0)
    assert meters.snapshot() == {
        ("framegate.worker.restarts", (("framegate.reason", "died"),)): 3,
        ("framegate.config.changes", ()): 1,
        ("framegate.tap.limit", ()): 7.0,
    }
    assert meters.value("worker.restarts", "died") == 3
    assert meters.value("worker.restarts", "heartbeat") == 0


def test_a_listeners_counters_are_there_from_the_start() -> None:
    meters = Meters()
    meters.prepare(["a"])
    rejected = ("framegate.connection.rejected", (("framegate.listener", "a"), ("framegate.reason", "address_connections")))
    assert meters.snapshot()[rejected] == 0


def test_every_counter_is_there_from_the_start_so_that_the_first_event_is_seen_in_a_rate() -> None:
    meters = Meters()
    meters.prepare(["a", "b"])
    snapshot = meters.snapshot()
    counters = {metric.name for metric in METRICS if metric.source == "control" and metric.kind == "counter"}
    others = ("framegate.telemetry.", "framegate.scrape.", "process.", "cpython.")
    assert {name for name, _ in snapshot} == {name for name in counters if not name.startswith(others)}
    assert set(snapshot.values()) == {0}
    assert ("framegate.worker.restarts", (("framegate.reason", "died"),)) in snapshot
    assert ("framegate.config.changes", ()) in snapshot
    assert ("framegate.accept.errors", (("framegate.listener", "b"), ("error.type", "EMFILE"))) in snapshot
    meters.add("log.dropped")
    meters.prepare(["a", "b"])
    assert meters.snapshot()["framegate.log.dropped", ()] == 1


def test_a_metric_that_control_does_not_count_is_our_bug() -> None:
    with pytest.raises(KeyError):
        Meters().add("frame.count")
    with pytest.raises(AssertionError):
        Meters().add("worker.restarts")
