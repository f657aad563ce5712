"""framegate's bench: what a frame, a connection and a change cost, beside HAProxy, NGINX, Envoy and a relay in C.

`make bench`, `make bench ARGS="--parts cpu --shapes 100x1,64k --protocols tls --candidates framegate,haproxy"`. README.md describes the method.
"""

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import answers
import certificates
import cpu
import figures
import guard
import handshakes
import hostages
import logins
import memory
import native
import plots
import pressure
import report
import starting
import steering
from candidates import Place, UnavailableError
from connections import Opener
from measure import Generator, Round
from processes import Process
from rich.console import Console
from shapes import SHAPES, chosen
from stage import Stage
from variants import CANDIDATES

from tests.fakes.certificates import Authority

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "bench"
DEFAULT_CANDIDATES = "c-relay,haproxy,nginx,envoy,framegate"
QUICK_CANDIDATES = "c-relay,haproxy,framegate"
PARTS: dict[str, Callable[[Stage], dict[str, object]]] = {
    "handshakes": handshakes.run,
    "memory": memory.run,
    "answers": answers.run,
    "hostages": hostages.run,
    "pressure": pressure.run,
    "logins": logins.run,
    "certificates": certificates.run,
    "control": steering.run,
    "start": starting.run,
}
WIDTH_OF_A_LOG = 160


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("cpu", *PARTS)
    shapes = ",".join(shape.name for shape in SHAPES)
    parser.add_argument("--quick", action="store_true", help="two minutes: part cpu, the C relay, HAProxy and framegate, short rounds")
    parser.add_argument("--parts", help=f"of {', '.join(parts)} (default: all)")
    parser.add_argument("--shapes", default=shapes, help=f"of part cpu: of {shapes} (default: all)")
    parser.add_argument("--protocols", help="of part cpu: of plain, tls, tls-both (default: all)")
    parser.add_argument("--candidates", help=f"of {', '.join(CANDIDATES)} (default: {DEFAULT_CANDIDATES})")
    parser.add_argument("--rounds", type=int, help="rounds in which the candidates take turns (default: 5; 1m: 7)")
    parser.add_argument("--seconds", type=float, help="measured in each round (default: 1.5)")
    parser.add_argument("--latency", action=argparse.BooleanOptionalAction, help="of part cpu: latency at half load, open loop")
    parser.add_argument("--before", metavar="COMMIT", help="compile this commit, too (some minutes), and have both builds take turns: the guard")
    parser.add_argument("--core", type=int, help="of the candidates (default: the last one); generator and echo take the others")
    parser.add_argument("--json", type=Path, help="file of the raw rounds (default: in .cache/bench/results); the plot is written beside it")
    options = parser.parse_args(arguments)
    quick = options.quick
    options.parts = (options.parts or ("cpu" if quick else ",".join(parts))).split(",")
    options.protocols = options.protocols or ("plain,tls" if quick else "plain,tls,tls-both")
    options.candidates = (options.candidates or (QUICK_CANDIDATES if quick else DEFAULT_CANDIDATES)).split(",")
    options.candidates += [guard.FramegateBefore.name] if options.before else []
    options.rounds = options.rounds or (3 if quick else 5)
    options.seconds = options.seconds or (0.9 if quick else 1.5)
    options.latency = not quick if options.latency is None else options.latency
    for words, known in ((options.parts, parts), (options.candidates, CANDIDATES)):
        unknown = [word for word in words if word not in known]
        if unknown:
            parser.error(f"{', '.join(unknown)}: not one of {', '.join(known)}")
    try:
        options.loads = chosen(options.shapes, options.protocols)
    except ValueError as error:
        parser.error(str(error))
    return options


def cores(wanted: int | None) -> tuple[int, int, int]:
    """The candidates' core, the generator's and the echo server's; on two cores the last two share one."""
    all_cores = sorted(os.sched_getaffinity(0))
    if len(all_cores) < 2:
        raise SystemExit("the bench needs two cores: one for the candidate, one for the load")
    candidate = all_cores[-1] if wanted is None else wanted
    others = [core for core in all_cores if core != candidate]
    return candidate, others[0], others[1] if len(others) > 1 else others[0]


def start_echo(name: str, program: Path, core: int, folder: Path, certificate: native.Certificate | None, stack: ExitStack) -> int:
    """Start an echo server; its port."""
    tls = [] if certificate is None else ["--tls", "--certificate", str(certificate.certificate), "--key", str(certificate.key)]
    process = Process(name, [str(program), "--echo", "--listen", "127.0.0.1:0", *tls], [core], folder)
    stack.callback(process.stop)
    return int(process.wait_for_row("port")["port"])


def versions(names: Sequence[str], place: Place) -> dict[str, str]:
    """The versions of what is compared; for a candidate that cannot run here the reason."""
    found = {}
    for name in names:
        try:
            found[name] = CANDIDATES[name].version(place)
        except UnavailableError as why:
            found[name] = f"left out: {why}"
    return found


def set_the_stage(options: argparse.Namespace, console: Console, stack: ExitStack) -> tuple[Stage, dict[str, str]]:
    """Compile the programs, start the echo servers, assign the cores; also the candidates' versions."""
    all_cores = tuple(sorted(os.sched_getaffinity(0)))
    candidate_core, load_core, echo_core = cores(options.core)
    os.sched_setaffinity(0, {load_core})
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="framegate-bench-")))
    folder.chmod(0o755)
    authority = Authority(folder)
    certificate, rsa = native.make_certificate(authority, "ecdsa"), native.make_certificate(authority, "rsa", with_rsa=True)
    program, opener = native.build("loadgen", CACHE), native.build("opener", CACHE)
    echo_port = start_echo("echo", program, echo_core, folder, None, stack)
    echo_tls_port = start_echo("echo-tls", program, echo_core, folder, certificate, stack)
    place = Place(folder, CACHE, (candidate_core,), certificate, echo_port, echo_tls_port)
    found = versions(options.candidates, place)
    for name, version in found.items():
        console.print(f"{name}: {version}", highlight=False)
    console.print(f"candidates on core {candidate_core}, load on {load_core}, echo on {echo_core}; {options.rounds} rounds of {options.seconds} s")
    warm_up = 0.4 if options.quick else 0.5
    stage = Stage(
        place=place,
        rsa=rsa,
        cores=all_cores,
        echo_core=echo_core,
        generator=Generator(program, load_core, warm_up, options.seconds),
        opener=Opener(opener, load_core, warm_up, options.seconds),
        names=tuple(name for name, version in found.items() if not version.startswith("left out")),
        rounds=options.rounds,
        console=console,
        quick=options.quick,
    )
    return stage, found


def run(options: argparse.Namespace, stack: ExitStack) -> int:
    """Every part in turn; one that fails is reported, and the others go on. The results are written after each."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_LOG)
    stage, found = set_the_stage(options, console, stack)
    facts = report.machine(found)
    file = options.json or CACHE / "results" / f"{datetime.now():%Y%m%d-%H%M%S}.json"
    parts: dict[str, object] = {}
    seconds: dict[str, float] = {}
    facts |= {"parts": parts, "part_seconds": seconds}
    rounds: list[Round] = []
    status = 0
    for name in options.parts:
        begun = time.monotonic()
        try:
            if name == "cpu":
                cpu.run(stage, options.loads, rounds, latency=options.latency)
            else:
                parts[name] = PARTS[name](stage)
        except Exception as error:
            traceback.print_exc()
            parts[name] = {"failed": repr(error)}
            status = 1
        seconds[name] = round(time.monotonic() - begun, 1)
        report.save(file, facts, rounds)
        console.print(f"[dim]part {name}: {seconds[name]:.0f} s[/dim]\n", highlight=False)
    figures.show(console, parts)
    if rounds:
        summaries = report.summarize([row for row in rounds if row.rate == 0])
        plots.save(file.with_suffix(".svg"), options.loads, summaries, facts)
        for line in guard.words(summaries):  # they do not change the exit code, since a noisy machine is no fault
            console.print(line, highlight=False)
    console.print(f"raw rounds: {file}", highlight=False)
    return status


def main(arguments: Sequence[str]) -> int:
    """The bench's command line."""
    options = parse(arguments)
    if options.before:
        guard.build(options.before)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that started processes are ended
    with ExitStack() as stack:
        return run(options, stack)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
