"""proxy.network.watchdog: the same item, for a whole window, too slow. Whole channels are watched in test_channel."""

from proxy.network.watchdog import Window


def test_a_window_begins_again_with_another_item_or_after_a_mute() -> None:
    window = Window()
    assert window.is_new(3, 0)
    assert not window.is_new(3, 0)
    assert window.is_new(3, 1)
    assert not window.is_new(3, 1)
    assert window.is_new(4, 1)


def test_nothing_in_progress_is_always_new() -> None:
    window = Window()
    assert window.is_new(-1, 0)
    assert window.is_new(-1, 0)
    assert window.is_new(0, 0)


def test_a_window_measures_from_its_beginning() -> None:
    window = Window()
    window.begin(5, 100)
    assert (window.since_ns, window.moved) == (5, 100)
