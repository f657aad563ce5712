"""Who waits for the answer to a refusal: so many, the oldest first."""

from framegate.proxy.network.delayed_refusals import DelayedRefusal, DelayedRefusals


class Peer(DelayedRefusal):
    def __init__(self) -> None:
        self.answered = 0

    def answer_now(self) -> None:
        self.answered += 1


def test_one_more_than_may_wait_has_the_oldest_answered() -> None:
    refusals = DelayedRefusals(2)
    first, second, third, fourth = (Peer() for _ in range(4))
    for peer in (first, second):
        refusals.add(peer)
    assert (len(refusals), first.answered) == (2, 0)
    refusals.add(third)
    assert (len(refusals), first.answered, second.answered) == (2, 1, 0)
    refusals.remove(first)
    refusals.remove(second)
    refusals.remove(second)
    refusals.add(fourth)
    assert (len(refusals), first.answered, second.answered, third.answered, fourth.answered) == (2, 1, 0, 0, 0)
