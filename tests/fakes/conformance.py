"""One suite for each interface that a fake implements: it runs on the real thing and on the fake alike, so that a test that passes with the fake
says something about the real one.

A suite is a test module with the two names ``INTERFACE``, the class (or classes) whose promises are tested, and ``KINDS``, what they are tested
on; its tests are parametrized with ``KINDS``. One whose ``KINDS`` are made differently names the classes in ``PROVES``. Suites are in
``tests/conformance``, or are what mirrors the interface's module. A class in ``tests/fakes`` that implements an interface of the code and that no
suite names fails ``tests/conformance/test_fakes.py``, and so does a suite without a real kind, or without a fake.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import tests.fakes

ROOMS = ("framegate.proxy.", "framegate.control.")
FAKES = "tests.fakes."
TESTS = Path(__file__).resolve().parent.parent
DECLARATION = "\nINTERFACE: Final"


class Kind(NamedTuple):
    of: type  # the class whose objects are tested
    make: Callable[..., Any]  # makes what the suite's tests are given; each suite has a signature of its own


def suites() -> list[ModuleType]:
    paths = [path for path in TESTS.rglob("test_*.py") if DECLARATION in path.read_text()]
    return [importlib.import_module(".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts))) for path in sorted(paths)]


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
        classes = _proven(suite)
        named |= classes
        if all(item.__module__.startswith(FAKES) for item in classes):
            found.append(f"{suite.__name__} runs on nothing real")
        if not any(item.__module__.startswith(FAKES) for item in classes):
            found.append(f"{suite.__name__} runs on no fake")
        interfaces = suite.INTERFACE if isinstance(suite.INTERFACE, tuple) else (suite.INTERFACE,)
        # by __mro__: compiled abstract classes share one cache of what issubclass has said
        found += [f"{suite.__name__}: {item.__name__} is none of it" for item in classes if not {*interfaces} & {*item.__mro__}]
    return found + [f"no suite runs on {item.__name__} of {item.__module__}" for item in implementations if item not in named]


def _proven(suite: ModuleType) -> set[type]:
    classes: Iterable[type] = suite.PROVES if hasattr(suite, "PROVES") else (kind.of for kind in suite.KINDS.values())
    return set(classes)
