from framegate.proxy.tap.record import REASON_DISK_ERROR, REASON_DISK_FULL, REASON_QUEUE_FULL, REASON_SAMPLED, REASON_UNDELIVERED
from framegate.proxy.tap.rule_use import WINDOW_NS, RuleUse
from tests.fakes.cases import each_of

START = 1_700_000_000_000_000_000


@each_of("reason", [REASON_QUEUE_FULL, REASON_DISK_FULL, REASON_DISK_ERROR])
def test_a_rule_that_loses_more_than_it_may_is_turned_off_at_the_end_of_the_window(reason: int) -> None:
    use = RuleUse("r", 10.0, 0.0)
    assert not use.evaluate(START)
    use.wanted = 1000
    use.note_loss(reason, 101)
    assert not use.evaluate(START + WINDOW_NS - 1)
    assert use.evaluate(START + WINDOW_NS)
    assert (use.off, use.cause, use.limit, round(use.percent, 1)) == (True, "loss", 10.0, 10.1)
    assert not use.evaluate(START + 2 * WINDOW_NS)


def test_what_is_lost_within_the_limit_or_for_no_fault_of_the_log_is_forgotten_with_its_window() -> None:
    use = RuleUse("r", 10.0, 0.0)
    use.evaluate(START)
    for window in range(1, 5):
        use.wanted = 1000
        use.note_loss(REASON_QUEUE_FULL, 100)
        use.note_loss(REASON_SAMPLED, 900)
        use.note_loss(REASON_UNDELIVERED, 900)
        assert not use.evaluate(START + window * WINDOW_NS)
    assert not use.off


def test_a_rule_that_costs_more_of_a_core_than_it_may_is_turned_off() -> None:
    use = RuleUse("r", 0.0, 25.0)
    assert use.timed
    use.evaluate(START)
    use.spent_ns = WINDOW_NS // 2
    assert not use.evaluate(START + 2 * WINDOW_NS)
    use.spent_ns = WINDOW_NS // 4 + 1
    assert use.evaluate(START + 3 * WINDOW_NS)
    assert (use.cause, use.limit) == ("cpu", 25.0)


def test_a_clock_that_is_set_back_begins_a_window() -> None:
    use = RuleUse("r", 1.0, 0.0)
    use.evaluate(START)
    use.note_loss(REASON_QUEUE_FULL, 10)
    assert not use.evaluate(START - 5)
    assert not use.evaluate(START - 5 + WINDOW_NS)
