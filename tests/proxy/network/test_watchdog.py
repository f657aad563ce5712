"""proxy.network.watchdog: the same item, for a whole window, too slow. Whole channels are watched in test_channel."""

from proxy.network.options import ChannelOptions
from proxy.network.receive import ReceiveLimit
from proxy.network.stats import SideStats
from proxy.network.watchdog import NS_PER_S, window_of

OPTIONS = ChannelOptions(side="downstream", limit=ReceiveLimit(-1), stats=SideStats(), stall_ns=2 * NS_PER_S, min_rate=10)


def test_a_window_begins_again_with_another_item_or_after_a_mute() -> None:
    window = window_of(3, 0, 0, 0, None)
    assert window_of(3, 0, 9, 9, window) is window
    assert window_of(3, 1, 9, 9, window) is not window
    assert window_of(4, 0, 9, 9, window) is not window


def test_nothing_in_progress_has_no_window() -> None:
    assert window_of(-1, 0, 0, 0, None) is None
    assert window_of(-1, 0, 0, 0, window_of(3, 0, 0, 0, None)) is None


def test_a_window_is_judged_when_it_is_over_and_begins_again_when_enough_has_moved() -> None:
    window = window_of(3, 0, 5, 100, None)
    assert window is not None
    assert not window.moves_too_little(5 + 2 * NS_PER_S - 1, 100, OPTIONS)
    assert window.moves_too_little(5 + 2 * NS_PER_S, 119, OPTIONS)
    assert not window.moves_too_little(5 + 2 * NS_PER_S, 120, OPTIONS)
    assert (window.since_ns, window.moved) == (5 + 2 * NS_PER_S, 120)
