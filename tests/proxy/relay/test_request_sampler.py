"""Which requests have a span."""

import random

from framegate.proxy.relay.request_sampler import MAX_OPEN, RATE, Sampler
from tests.fakes.cases import each_of


@each_of("share", [0.001, 0.1, 0.3, 0.75])
def test_each_request_is_chosen_with_the_same_probability(share: float) -> None:
    sampler = Sampler(random.Random(28).random)
    sampler.set_share(share)
    gaps = [int(sampler.gap()) for _ in range(20_000)]
    assert abs(len(gaps) / (sum(gaps) + len(gaps)) / share - 1) < 0.05


def test_a_share_of_all_or_none_and_draws_at_the_edge() -> None:
    sampler = Sampler(lambda: 0.0)
    assert sampler.left > 1 << 60
    for share, left in ((1.0, 0), (0.5, 0)):
        sampler.set_share(share)
        assert sampler.left == left
    sampler.set_share(0.0)
    assert sampler.left > 1 << 60
    last = Sampler(lambda: 1 - 2**-53)
    last.set_share(1e-12)
    assert 0 < last.left < 1 << 62
    left = last.left = 7
    last.set_share(1e-12)
    assert last.left == left, "the same share goes on"


def test_spans_are_bounded_in_a_second_and_in_number() -> None:
    sampler = Sampler()
    assert sum(sampler.admit() for _ in range(RATE + 3)) == RATE
    assert (sampler.open, sampler.skipped) == (RATE, 3)
    sampler.refill()
    sampler.open = MAX_OPEN - 1
    assert [sampler.admit(), sampler.admit()] == [True, False]
    assert sampler.skipped == 4
