import pytest

from framegate.control.meters import Meters


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


def test_counters_that_are_not_of_one_thing_among_many_are_there_from_the_start() -> None:
    meters = Meters()
    meters.prepare(["a", "b"])
    listener = "framegate.listener"
    assert meters.snapshot() == {
        **{("framegate.accept.blocked.time", ((listener, name),)): 0 for name in ("a", "b")},
        ("framegate.audit.failures", ()): 0,
        ("framegate.log.dropped", ()): 0,
        ("framegate.authentication.questions.refused", ()): 0,
        ("framegate.control.lag.time", ()): 0,
    }
    meters.add("log.dropped")
    meters.prepare(["a", "b"])
    assert meters.snapshot()["framegate.log.dropped", ()] == 1


def test_a_metric_that_control_does_not_count_is_our_bug() -> None:
    with pytest.raises(KeyError):
        Meters().add("frame.count")
    with pytest.raises(AssertionError):
        Meters().add("worker.restarts")


def test_gauges_by_attributes_are_those_of_now() -> None:
    meters, lags = Meters(), {("one",): 3.0, ("two",): 4.0}
    meters.gauges("tap.lag", lambda: lags)
    key = "framegate.tap.lag"
    assert meters.snapshot() == {(key, (("framegate.consumer", "one"),)): 3.0, (key, (("framegate.consumer", "two"),)): 4.0}
    del lags["one",]
    assert meters.snapshot() == {(key, (("framegate.consumer", "two"),)): 4.0}
    with pytest.raises(AssertionError):
        meters.gauges("drain.time", dict)
