"""framegate's bench: processor time per echoed frame, throughput and latency, beside HAProxy, NGINX, Envoy and a relay in C.

`make bench`, `make bench ARGS="--shapes 100x1,64k --protocols tls --candidates framegate,haproxy"`. The method is in README.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import native
import report
from candidates import CANDIDATES, Candidate, Place, UnavailableError
from measure import Generator, Round
from processes import Process
from rich.console import Console
from shapes import SHAPES, Load, chosen
from tapcost import floor_ns_per_byte

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench"
DEFAULT_CANDIDATES = "c-relay,haproxy,nginx,envoy,framegate"
TAP_CANDIDATES = "framegate,framegate-idle-rule,framegate-tap"
ROOM_FOR_TAP = 4 << 30
WIDTH_OF_A_LOG = 150


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ",".join(shape.name for shape in SHAPES[:4])
    parser.add_argument("--quick", action="store_true", help="two minutes: the C relay, HAProxy and framegate, three short rounds")
    parser.add_argument("--shapes", default=names, help=f"of {', '.join(shape.name for shape in SHAPES)} (default: {names})")
    parser.add_argument("--protocols", default="plain,tls", help="of plain, tls, tls-both (default: plain,tls)")
    parser.add_argument("--candidates", help=f"of {', '.join(CANDIDATES)} (default: {DEFAULT_CANDIDATES})")
    parser.add_argument("--rounds", type=int, help="rounds in which the candidates take turns (default: 5)")
    parser.add_argument("--seconds", type=float, help="measured in each round (default: 3)")
    parser.add_argument("--warm-up", type=float, help="before that (default: 1)")
    parser.add_argument("--latency", action="store_true", help="then latency at half load, open loop, the same rate for all")
    parser.add_argument("--tap", action="store_true", help=f"what the tap costs: {TAP_CANDIDATES}")
    parser.add_argument("--memory", action="store_true", help="resident memory at start; nothing else unless --shapes is given")
    parser.add_argument("--core", type=int, help="of the candidates (default: the last one); generator and echo take the others")
    parser.add_argument("--json", type=Path, help="where the raw rounds go (default: .cache/bench/results/)")
    options = parser.parse_args(arguments)
    options.candidates = options.candidates or (
        TAP_CANDIDATES if options.tap else "c-relay,haproxy,framegate" if options.quick else DEFAULT_CANDIDATES
    )
    options.rounds = options.rounds or (3 if options.quick else 5)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    options.warm_up = options.warm_up or (0.5 if options.quick else 1.0)
    unknown = [name for name in options.candidates.split(",") if name not in CANDIDATES]
    if unknown:
        parser.error(f"no such candidate: {', '.join(unknown)}")
    try:
        options.loads = chosen(options.shapes, options.protocols)
    except ValueError as error:
        parser.error(str(error))
    return options


@dataclass(slots=True)
class Bench:
    """One run of the bench."""

    place: Place
    generator: Generator
    names: list[str]
    console: Console
    rounds: list[Round] = field(default_factory=list)

    def start_all(self, load: Load, stack: ExitStack) -> list[Candidate]:
        """Every candidate that can serve a load; those that cannot are named and left out."""
        started = []
        for name in self.names:
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
            started.append(candidate)
        return started

    def run(self, load: Load, rounds: int, *, latency: bool) -> None:
        """Rounds in which the candidates take turns, each time from another one on, so that a machine that drifts drifts for all."""
        with ExitStack() as stack:
            candidates = self.start_all(load, stack)
            for number in range(rounds):
                first = number % max(len(candidates), 1)
                for candidate in candidates[first:] + candidates[:first]:
                    self.rounds.append(self.generator.run(candidate, load, number))
            summaries = report.summarize([row for row in self.rounds if row.rate == 0])
            report.show_throughput(self.console, load, summaries)
            if latency and candidates:
                rate = 0.5 * min(summaries[load.protocol, load.shape.name, candidate.name].frames_per_second for candidate in candidates)
                rows = [self.generator.run(candidate, load, number, rate) for number in range(rounds) for candidate in candidates]
                self.rounds += rows
                report.show_latency(self.console, load, rows)

    def memory(self) -> dict[str, dict[str, float]]:
        """Resident memory of every candidate after its start, before any connection."""
        result = {}
        load = Load(SHAPES[0])
        with ExitStack() as stack:
            for candidate in self.start_all(load, stack):
                result[candidate.name] = candidate.process.memory()
        return result


def cores(wanted: int | None) -> tuple[int, int, int]:
    """The candidates' core, the generator's and the echo server's; on two cores the last two share one."""
    all_cores = sorted(os.sched_getaffinity(0))
    if len(all_cores) < 2:
        raise SystemExit("the bench needs two cores: one for the candidate, one for the load")
    candidate = all_cores[-1] if wanted is None else wanted
    others = [core for core in all_cores if core != candidate]
    return candidate, others[0], others[1] if len(others) > 1 else others[0]


def tap_directory(folder: Path) -> Path:
    """In memory when there is room, so that no disk is measured."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > ROOM_FOR_TAP:
        return Path(tempfile.mkdtemp(prefix="framegate-bench-", dir=memory)) / "tap"
    return folder / "tap"


def start_echo(name: str, program: Path, core: int, folder: Path, certificate: native.Certificate | None) -> tuple[Process, int]:
    """An echo server, and its port."""
    tls = [] if certificate is None else ["--tls", "--certificate", str(certificate.certificate), "--key", str(certificate.key)]
    process = Process(name, [str(program), "--echo", "--listen", "127.0.0.1:0", *tls], [core], folder)
    return process, int(process.wait_for_row("port")["port"])


def versions(names: list[str], place: Place) -> dict[str, str]:
    """What is compared; a candidate that cannot run here says why."""
    found = {}
    for name in names:
        try:
            found[name] = CANDIDATES[name].version(place)
        except UnavailableError as why:
            found[name] = f"left out: {why}"
    return found


def run(options: argparse.Namespace, stack: ExitStack) -> None:
    """Set the scene, measure, report."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_LOG)
    candidate_core, load_core, echo_core = cores(options.core)
    os.sched_setaffinity(0, {load_core})
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="framegate-bench-")))
    folder.chmod(0o755)
    certificate = native.make_certificate(folder)
    program = native.build("loadgen", CACHE)
    echo, echo_port = start_echo("echo", program, echo_core, folder, None)
    stack.callback(echo.stop)
    echo_tls, echo_tls_port = start_echo("echo-tls", program, echo_core, folder, certificate)
    stack.callback(echo_tls.stop)
    tap = tap_directory(folder)
    stack.callback(shutil.rmtree, tap.parent if tap.parent != folder else tap, ignore_errors=True)
    place = Place(folder, CACHE, (candidate_core,), certificate, echo_port, echo_tls_port, tap)
    names = options.candidates.split(",")
    found = versions(names, place)
    names = [name for name in names if not found[name].startswith("left out")]
    for name, version in found.items():
        console.print(f"{name}: {version}", highlight=False)
    console.print(f"candidates on core {candidate_core}, load on {load_core}, echo on {echo_core}; {options.rounds} rounds of {options.seconds} s")
    bench = Bench(place, Generator(program, load_core, options.warm_up, options.seconds), names, console)
    facts = report.machine(found)
    if options.memory:
        facts["memory_mib"] = memory = bench.memory()
        report.show_memory(console, memory)
    else:
        measure(options, bench, facts, console)
    path = options.json or CACHE / "results" / f"{datetime.now():%Y%m%d-%H%M%S}.json"
    report.save(path, facts, bench.rounds)
    console.print(f"raw rounds: {path}", highlight=False)


def measure(options: argparse.Namespace, bench: Bench, facts: dict[str, object], console: Console) -> None:
    """Every load in turn."""
    for load in options.loads:
        floor_ns = floor_ns_per_byte(bench.place.cores[0], bench.place.tap_directory.parent, options.seconds) if options.tap else 0.0
        bench.run(load, options.rounds, latency=options.latency)
        if options.tap:
            facts.setdefault("tap_floor_ns_per_byte", []).append({"load": load.title, "ns": floor_ns})  # type: ignore[attr-defined]
            report.show_tap(console, load, bench.rounds, floor_ns)


def main(arguments: Sequence[str]) -> int:
    """The bench's command line."""
    options = parse(arguments)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with ExitStack() as stack:
        run(options, stack)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
