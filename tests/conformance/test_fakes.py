"""Every fake of an interface has a suite that runs on the real thing, too."""

from types import ModuleType

from proxy.clock import Clock, MonotonicClock
from tests.fakes.clock import FakeClock
from tests.fakes.conformance import Kind, faults, implementations, suites


class Forgotten(Clock):
    """A fake that no suite names."""

    def now_ns(self) -> int:
        return 0


def suite_of(*classes: type, interface: type = Clock) -> ModuleType:
    made = ModuleType("test_made_up")
    made.INTERFACE, made.KINDS = interface, {item.__name__: Kind(item, item) for item in classes}  # type: ignore[attr-defined]
    return made


def test_every_fake_of_an_interface_is_proven_by_the_suite_of_the_real_one() -> None:
    assert FakeClock in implementations(), "they are found"
    assert faults(suites(), implementations()) == []


def test_a_fake_that_no_suite_names_is_found() -> None:
    assert faults([suite_of(MonotonicClock, FakeClock)], [FakeClock, Forgotten]) == [f"no suite runs on Forgotten of {__name__}"]


def test_a_suite_without_the_real_thing_or_without_the_fake_is_found() -> None:
    assert faults([suite_of(FakeClock)], []) == ["test_made_up runs on nothing real"]
    assert faults([suite_of(MonotonicClock)], []) == ["test_made_up runs on no fake"]


def test_a_suite_may_name_its_classes_itself() -> None:
    made = suite_of()
    made.PROVES = (MonotonicClock, Forgotten, FakeClock)  # type: ignore[attr-defined]
    assert faults([made], [FakeClock, Forgotten]) == []


def test_a_suite_that_runs_on_something_else_is_found() -> None:
    assert faults([suite_of(MonotonicClock, FakeClock, dict)], []) == ["test_made_up: dict is none of it"]
