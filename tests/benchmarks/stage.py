"""What every part of the bench works with: the place, the programs that make load, the candidates' names, and the console for tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import native
from candidates import MANY_CONNECTIONS, Candidate, Framegate, Place, UnavailableError
from connections import Opener
from measure import Generator
from rich.console import Console
from rich.table import Table
from shapes import Load
from variants import CANDIDATES

MOST_CONNECTIONS = min(10_000, MANY_CONNECTIONS - 100)
FEWER_CONNECTIONS = "" if MOST_CONNECTIONS == 10_000 else ": as many as the limit of descriptors allows here"
SPARE_CORES = 3

T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    place: Place  # where candidates run
    rsa: native.Certificate  # a certificate with an RSA key; the place's own has an ECDSA one
    cores: tuple[int, ...]  # that the bench may use
    echo_core: int  # of the servers behind the candidates
    # generator, opener: make the load
    generator: Generator
    opener: Opener
    names: tuple[str, ...]  # of the candidates asked for that can run here
    rounds: int  # of the parts that compare processor time
    console: Console  # for tables
    quick: bool = False  # shorter, smaller, less exact

    def say(self, text: str) -> None:
        """Print a line beside the tables."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def say_failures(self, rows: Iterable[Any]) -> None:
        """Print why the candidates of some rows have no result."""
        for row in rows:
            if row.failed:
                self.say(f"{row.candidate}: {row.failed}")

    def on_all_cores(self) -> "Stage":
        """The same stage with candidates that may use every core; with more than three cores, every one but the load generator's."""
        free = tuple(core for core in self.cores if core != self.generator.core)
        return replace(self, place=replace(self.place, cores=free if len(free) >= SPARE_CORES else self.cores))

    @contextmanager
    def all_started(self, load: Load, names: Iterable[str] | None = None) -> Iterator[list[Candidate]]:
        """Every candidate that can serve a load; the others are named and left out."""
        with ExitStack() as stack:
            found = []
            for name in self.names if names is None else names:
                candidate = CANDIDATES[name](self.place, load)
                try:
                    candidate.start()
                except UnavailableError as why:
                    self.say(f"[dim]{load.title}: without {name}: {why}[/dim]")
                    continue
                except BaseException:
                    if hasattr(candidate, "process"):
                        candidate.stop()
                    raise
                stack.callback(candidate.stop)
                found.append(candidate)
            yield found

    @contextmanager
    def framegate(self, load: Load, name: str) -> Iterator[Framegate]:
        """One variant of framegate, started."""
        with self.all_started(load, [name]) as (candidate,):
            assert isinstance(candidate, Framegate), name
            yield candidate

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print a table: the first column to the left, the others to the right."""
        table = Table(title=title, title_justify="left")
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)


def in_turn(candidates: Sequence[Candidate], rounds: int, measure: Callable[[Candidate, int], T]) -> list[T]:
    """Rounds in which the candidates take turns, each beginning with another one, so that a drift of the machine affects all."""
    results = []
    for number in range(rounds):
        first = number % max(len(candidates), 1)
        results += [measure(candidate, number) for candidate in [*candidates[first:], *candidates[:first]]]
    return results
