"""What every part of the bench works with: the place, the programs that make load, the candidates' names, and where tables go."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import native
from candidates import MANY_CONNECTIONS, Candidate, Place, UnavailableError
from connections import Opener
from measure import Generator
from rich.console import Console
from rich.table import Table
from shapes import Load
from variants import CANDIDATES

__all__ = ["MOST_CONNECTIONS", "PEERS", "Stage", "in_turn", "ratio_to_best", "short", "spread"]

PEERS = ("haproxy", "nginx", "envoy")
MOST_CONNECTIONS = min(10_000, MANY_CONNECTIONS - 100)
SPARE_CORES = 3

T = TypeVar("T")


@dataclass(frozen=True)
class Stage:
    """One run of the bench.

    Attributes:
        place: where candidates run.
        rsa: a certificate with an RSA key; the place's own has an ECDSA one.
        cores: that we may use.
        echo_core: of the servers behind the candidates.
        generator, opener: make the load.
        names: of the candidates asked for that can run here.
        rounds: of the parts that compare processor time.
        kinds: of part `handshakes`, by their words.
        console: where tables go.
        quick: shorter, smaller, less sure.
    """

    place: Place
    rsa: native.Certificate
    cores: tuple[int, ...]
    echo_core: int
    generator: Generator
    opener: Opener
    names: tuple[str, ...]
    rounds: int
    kinds: tuple[str, ...]
    console: Console
    quick: bool = False

    def say(self, text: str) -> None:
        """A line beside the tables."""
        self.console.print(text, highlight=False)

    def on_all_cores(self) -> Stage:
        """The same with candidates that may run wherever there is room: on more than three cores, everywhere but where the load is made."""
        free = tuple(core for core in self.cores if core != self.generator.core)
        return replace(self, place=replace(self.place, cores=free if len(free) >= SPARE_CORES else self.cores))

    def with_rsa(self) -> Stage:
        """The same with an RSA certificate."""
        return replace(self, place=replace(self.place, certificate=self.rsa))

    @contextmanager
    def all_started(self, load: Load, names: Iterable[str] | None = None) -> Iterator[list[Candidate]]:
        """Every candidate that can serve a load; those that cannot are named and left out."""
        with ExitStack() as stack:
            found = []
            for name in self.names if names is None else names:
                candidate = CANDIDATES[name](self.place, load)
                try:
                    candidate.start()
                except UnavailableError as why:
                    self.console.print(f"[dim]{load.title}: without {name}: {why}[/dim]", highlight=False)
                    continue
                except BaseException:
                    if hasattr(candidate, "process"):
                        candidate.stop()
                    raise
                stack.callback(candidate.stop)
                found.append(candidate)
            yield found

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """The first column to the left, the others to the right."""
        table = Table(title=title, title_justify="left")
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self.console.print(table)


def in_turn(candidates: Sequence[Candidate], rounds: int, measure: Callable[[Candidate, int], T]) -> list[T]:
    """Rounds in which the candidates take turns, each time from another one on, so that a machine that drifts drifts for all."""
    results = []
    for number in range(rounds):
        first = number % max(len(candidates), 1)
        results += [measure(candidate, number) for candidate in [*candidates[first:], *candidates[:first]]]
    return results


def short(value: float) -> str:
    """Three digits that matter."""
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def spread(values: Sequence[float]) -> tuple[str, str]:
    """The median, and the extremes."""
    return short(statistics.median(values)), f"{short(min(values))} – {short(max(values))}"


def ratio_to_best(value: float, others: Iterable[float]) -> str:
    """Beside the lowest of the others; empty when there is none."""
    best = min(others, default=0.0)
    return f"{value / best:.2f}" if best else ""
