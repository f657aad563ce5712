from framegate.proxy.tap.gap import MAX_PENDING_GAPS, NO_CONNECTION, Gap, PendingGaps
from framegate.proxy.tap.record import REASON_DISK_FULL, REASON_QUEUE_FULL


def gap(connection: int = 1, *, direction: int = 0, reason: int = REASON_QUEUE_FULL, first: int = 0, from_ns: int = 10, frames: int = 1) -> Gap:
    one = Gap(
        connection=connection,
        direction=direction,
        reason=reason,
        listener="main",
        principal="CN=a",
        peer="10.0.0.1:1",
        rule="all",
        first_frame=first,
        from_ns=from_ns,
    )
    one.add(frames, 100 * frames, from_ns)
    return one


def test_losses_of_one_connection_direction_and_reason_are_one_gap() -> None:
    pending = PendingGaps()
    first = pending.remember(gap(first=5, from_ns=20, frames=2))
    later = gap(first=9, from_ns=10, frames=3)
    assert pending.remember(later) is first
    assert (first.frames, first.bytes, first.first_frame, first.from_ns) == (5, 500, 5, 10)
    assert (later.written, first.written) == (True, False)
    others = [gap(2), gap(1, direction=1), gap(1, reason=REASON_DISK_FULL)]
    assert [pending.remember(one) for one in others] == others
    assert len(pending) == 4
    pending.remember(gap(first=2))
    assert (first.frames, first.first_frame) == (6, 2)
    assert pending.take() == [first, *others]
    assert len(pending) == 0


def test_too_many_gaps_fold_into_one_that_names_no_connection() -> None:
    pending = PendingGaps()
    all_gaps = [gap(connection, direction=connection % 2, from_ns=1000 - connection % 7) for connection in range(MAX_PENDING_GAPS + 1)]
    for one in all_gaps:
        pending.remember(one)
    assert all(one.written for one in all_gaps)
    folded = pending.take()
    assert len(folded) == 2
    assert {whole.connection for whole in folded} == {NO_CONNECTION}
    assert {(whole.principal, whole.peer, whole.first_frame) for whole in folded} == {(None, None, -1)}
    assert {whole.listener for whole in folded} == {"main"}
    assert sum(whole.frames for whole in folded) == MAX_PENDING_GAPS + 1
    assert min(whole.from_ns for whole in folded) == 994
