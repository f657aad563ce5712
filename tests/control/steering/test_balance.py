from hypothesis import given
from hypothesis import strategies as st

from framegate.control.steering.balance import CALM_SAMPLES, LEAST_MOVE, Need, Sample, moved_shares

MIB = 1 << 20


def test_an_idle_share_gives_half_of_what_it_can_spare() -> None:
    assert moved_shares({0: 8 * MIB, 1: 8 * MIB}, {0: 8 * MIB, 1: 0}, {0}, 2 * MIB) == {0: 11 * MIB, 1: 5 * MIB}


def test_nothing_moves_when_nobody_can_spare_or_nobody_needs() -> None:
    assert moved_shares({0: 8 * MIB, 1: 8 * MIB}, {0: 0, 1: 0}, set(), MIB) is None
    assert moved_shares({0: 8 * MIB, 1: 8 * MIB}, {0: 8 * MIB, 1: 8 * MIB}, {0, 1}, MIB) is None
    assert moved_shares({0: 8 * MIB, 1: 8 * MIB}, {0: 8 * MIB, 1: 4 * MIB}, {0}, MIB) is None
    assert moved_shares({0: MIB, 1: MIB}, {0: MIB, 1: 0}, {0}, MIB) is None
    assert moved_shares({0: MIB, 1: MIB + LEAST_MOVE}, {0: MIB, 1: 0}, {0}, MIB) is None


@given(
    shares=st.dictionaries(st.integers(0, 7), st.integers(MIB, 64 * MIB), min_size=1),
    seed=st.randoms(use_true_random=False),
)
def test_the_sum_stays_and_no_share_falls_below_the_largest_frame_or_its_usage(shares: dict[int, int], seed: object) -> None:
    usage = {slot: seed.randint(0, share) for slot, share in shares.items()}  # type: ignore[attr-defined]
    needy = {slot for slot in shares if seed.random() < 0.4}  # type: ignore[attr-defined]
    moved = moved_shares(shares, usage, needy, MIB)
    if moved is not None:
        assert sum(moved.values()) == sum(shares.values())
        assert all(share >= MIB and share >= usage[slot] for slot, share in moved.items())
        assert all(moved[slot] >= shares[slot] for slot in needy)


def test_needy_is_who_waited_in_two_intervals_running() -> None:
    need = Need()
    assert need.update({0: Sample(0, 5), 1: Sample(0, 0)}) == set()
    assert need.update({0: Sample(0, 6), 1: Sample(0, 0)}) == set()
    assert need.update({0: Sample(0, 9), 1: Sample(0, 1)}) == {0}
    assert need.update({0: Sample(0, 9), 1: Sample(0, 2)}) == {1}
    assert need.update({0: Sample(0, 9), 1: Sample(0, 2)}) == set()
    assert not need.calm
    for _ in range(CALM_SAMPLES):
        need.update({0: Sample(0, 9), 1: Sample(0, 2)})
    assert need.calm
