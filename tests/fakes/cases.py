"""Many cases of one rule as one test: all of them run, and those that failed are named together."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def each_of(names: str | Sequence[str], rows: Iterable[Any], *, fresh: Mapping[str, Callable[[], Any]] | None = None) -> Callable[[Test], Test]:
    """As ``pytest.mark.parametrize``, for tests of which one run leaves nothing for the next: they share what fixtures give. Several may be stacked.

    Args:
        names: of the parameters: a list, or a text with commas.
        rows: a value for each, or the one value.
        fresh: what each case has for itself, by parameter: what makes it, which may be a context manager. Of several decorators the lowest has it.
    """
    chosen = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    cases = [dict(zip(chosen, row if len(chosen) > 1 else (row,), strict=True)) for row in rows]
    assert cases, "without a case nothing is tested"

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in (*chosen, *(fresh or ()))]

        @functools.wraps(test)
        def all_cases(**fixtures: Any) -> None:
            failed: list[Exception] = []
            for case in cases:
                try:
                    with contextlib.ExitStack() as stack:
                        made = {name: make() for name, make in (fresh or {}).items()}
                        own = {name: stack.enter_context(one) if hasattr(one, "__exit__") else one for name, one in made.items()}
                        test(**fixtures, **own, **case)
                except (Exception, pytest.fail.Exception) as raised:
                    error = raised if isinstance(raised, Exception) else AssertionError(str(raised))
                    error.add_note("case: " + ", ".join(f"{name}={value!r:.200}" for name, value in case.items()))
                    failed.append(error)
            if len(failed) == 1:
                raise failed[0]
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(cases)} cases", failed)

        all_cases.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return all_cases

    return decorate
