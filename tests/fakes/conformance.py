"""One suite for each interface that a fake implements: it runs on the real thing and on the fake alike, so that a test that passes with the fake
says something about the real one.

Every module of ``tests/conformance`` has the two names ``INTERFACE``, the class whose promises are tested, and ``KINDS``, what they are tested on;
its tests are parametrized with ``KINDS``. A class in ``tests/fakes`` that implements an interface of the code and is in no ``KINDS`` fails
``tests/conformance/test_fakes.py``, and so does a suite without a real kind.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import tests.fakes

__all__ = ["Kind", "faults", "implementations", "suites"]

ROOMS = ("proxy.", "control.")
FAKES = "tests.fakes."


class Kind(NamedTuple):
    """What a suite runs on.

    Attributes:
        of: the class whose objects are tested.
        make: makes what the suite's tests are given; each suite has a signature of its own.
    """

    of: type
    make: Callable[..., Any]


def suites() -> list[ModuleType]:
    """Every suite."""
    folder = Path(__file__).resolve().parent.parent / "conformance"
    names = sorted(path.stem for path in folder.glob("test_*.py") if path.stem != "test_fakes")
    return [importlib.import_module(f"tests.conformance.{name}") for name in names]


def implementations() -> list[type]:
    """Every class of the fakes that derives from one of the code."""
    modules = [importlib.import_module(f"{FAKES}{found.name}") for found in pkgutil.iter_modules(tests.fakes.__path__)]
    classes = {item for module in modules for item in vars(module).values() if isinstance(item, type) and item.__module__.startswith(FAKES)}
    return sorted((item for item in classes if any(base.__module__.startswith(ROOMS) for base in item.__mro__)), key=lambda item: item.__qualname__)


def faults(suites: Iterable[ModuleType], implementations: Iterable[type]) -> list[str]:
    """What is wrong with the suites, and which of the fakes' classes no suite names."""
    found: list[str] = []
    named: set[type] = set()
    for suite in suites:
        kinds: dict[str, Kind] = suite.KINDS
        classes = {kind.of for kind in kinds.values()}
        named |= classes
        if all(item.__module__.startswith(FAKES) for item in classes):
            found.append(f"{suite.__name__} runs on nothing real")
        if not any(item.__module__.startswith(FAKES) for item in classes):
            found.append(f"{suite.__name__} runs on no fake")
        found += [f"{suite.__name__}: {item.__name__} is no {suite.INTERFACE.__name__}" for item in classes if not issubclass(item, suite.INTERFACE)]
    return found + [f"no suite runs on {item.__name__} of {item.__module__}" for item in implementations if item not in named]
