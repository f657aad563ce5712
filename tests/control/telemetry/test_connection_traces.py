"""Which connections have spans."""

import pytest

from framegate.control.telemetry import connection_traces
from framegate.control.telemetry.connection_traces import RATE, ConnectionTraces
from tests.fakes.clock import FakeClock
from tests.fakes.tracing import tracing


def test_the_ids_of_a_connection_last_until_some_others_have_ended_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_traces, "_ENDED", 2)
    with tracing() as made:
        known = ConnectionTraces(made.traces, made.account.skip)
        found = [known.begin(number) for number in range(4)]
        assert [known.of(number) for number in range(5)] == [*found, None]
        assert [known.end(number) for number in (0, 1, 4)] == [*found[:2], None]
        assert known.fields(0) == {"trace_id": f"{found[0].trace_id:032x}", "span_id": f"{found[0].span_id:016x}"}  # type: ignore[union-attr]
        known.end(2)
        assert [known.of(number) for number in range(4)] == [None, *found[1:]]
        assert known.fields(0) == {}


def test_connections_are_chosen_at_a_rate_and_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    with tracing() as made:
        known = ConnectionTraces(made.traces, made.account.skip, lambda: clock.now_ns() / 1e9)
        assert sum(known.begin(number) is not None for number in range(RATE + 5)) == RATE
        assert made.account.skipped == 5
        clock.advance_ms(1_000)
        monkeypatch.setattr(connection_traces, "MAX_KNOWN", RATE + 1)
        assert [known.begin(number) is not None for number in (1_000, 1_001)] == [True, False]
        assert made.account.skipped == 6


def test_the_sampler_chooses_before_the_rate() -> None:
    with tracing(sampler="always_off") as made:
        known = ConnectionTraces(made.traces, made.account.skip)
        assert [known.begin(number) for number in range(2 * RATE)] == [None] * (2 * RATE)
        assert made.account.skipped == 0
