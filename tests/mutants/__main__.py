"""Does the suite notice? Puts one small fault after another into a copy of the code, and runs the tests that must fail then.

    make mutants                        all of them
    make mutants ARGS="-k tls -j 1"     those whose row has this word, one at a time

The tree itself is never changed. First the tests run over the copy as it is: they must pass there. A text that is not found, or found twice,
is an error of the list (exit 2). Fewer caught than --least: exit 1.
"""

import argparse
import concurrent.futures
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
COPIED: Final = (".src", "proxy", "control", "tests", "deploy", "proto", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile", "LICENSE")
NOT_COPIED: Final = shutil.ignore_patterns("*.so", "benchmarks", "cluster")
TIMEOUT_S: Final = 300
MOST_UNCAUGHT: Final = 2
ROW: Final = re.compile(r"^(\S+): (.+) \((.+)\)\n- (.+)\n\+ (.*)\n", re.MULTILINE)


class Mutant(NamedTuple):
    """Attributes: ``tests``: test files below tests/, separated by spaces."""

    file: str
    what: str
    tests: str
    old: str
    new: str


def read_list() -> list[Mutant]:
    text = Path(__file__).with_name("list.txt").read_text()
    rows = [Mutant(*row[:3], *(part.encode().decode("unicode_escape") for part in row[3:])) for row in ROW.findall(text)]
    assert len(rows) == text.count("\n- "), "each row has three lines"
    return rows


def copy_of(root: Path, where: Path) -> Path:
    """The tree without what tests do not need. Compiled files of Python come along: only what is mutated is compiled anew."""
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, where / name, ignore=NOT_COPIED, symlinks=True)
        else:
            shutil.copy2(root / name, where / name)
    return where


def passes(tree: Path, tests: str) -> tuple[bool, str]:
    """Whether these test files pass over a tree, and the last lines of what pytest said."""
    paths = [f"tests/{name}" for name in tests.split()]
    environment = {**os.environ, "PYTHONPATH": f"{tree}/.src:{tree}", "FRAMEGATE_EXPECT": "pure", "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--no-header", "--tb=line", "-m", "not spark and not kafka", *paths]
    try:
        run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False, f"no end within {TIMEOUT_S} s"
    if run.returncode not in (0, 1):
        raise SystemExit(f"pytest could not run {tests} in {tree}:\n{run.stdout[-4000:]}{run.stderr[-4000:]}")
    return run.returncode == 0, run.stdout[-1500:]


def faults(mutants: list[Mutant]) -> list[str]:
    wrong = []
    for mutant in mutants:
        count = (ROOT / mutant.file).read_text().count(mutant.old) if (ROOT / mutant.file).is_file() else 0
        if count != 1:
            wrong.append(f"{mutant.what}: {mutant.old!r} is {count} times in {mutant.file}")
        wrong += [f"{mutant.what}: there is no tests/{name}" for name in mutant.tests.split() if not (ROOT / "tests" / name).is_file()]
    return wrong


def try_one(mutant: Mutant, trees: "queue.Queue[Path]") -> tuple[Mutant, bool, float]:
    """Whether the tests notice a fault, and how long they took."""
    tree = trees.get()
    path = tree / mutant.file
    text, began = path.read_text(), time.monotonic()
    try:
        path.write_text(text.replace(mutant.old, mutant.new))
        os.utime(path, (time.time() + 10, time.time() + 10))  # Python's compiled file is of a second and a size: neither may be the same
        return mutant, not passes(tree, mutant.tests)[0], time.monotonic() - began
    finally:
        shutil.copy2(ROOT / mutant.file, path)
        trees.put(tree)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-k", default="", help="only rows that have this text")
    parser.add_argument("-j", type=int, default=2, help="how many at a time (2)")
    parser.add_argument("--most-uncaught", type=int, default=MOST_UNCAUGHT, help="more than so many is a failure (%(default)s)")
    chosen = parser.parse_args()
    mutants = [mutant for mutant in read_list() if chosen.k in " ".join(mutant)]
    wrong = faults(mutants)
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="framegate-mutants-") as folder:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(chosen.j):
            trees.put(copy_of(ROOT, Path(folder) / str(number)))
        tests = " ".join(sorted({name for mutant in mutants for name in mutant.tests.split()}))
        tree = trees.get()
        good, said = passes(tree, tests)
        trees.put(tree)
        if not good:
            print(f"the tests fail without any fault:\n{said}", file=sys.stderr)
            return 2
        survivors = []
        with concurrent.futures.ThreadPoolExecutor(chosen.j) as workers:
            for mutant, caught, seconds in workers.map(lambda mutant: try_one(mutant, trees), mutants):
                print(f"{'caught  ' if caught else 'SURVIVED'} {seconds:5.1f} s  {mutant.file}: {mutant.what}", flush=True)
                survivors += [] if caught else [mutant]
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught")
    return 1 if len(survivors) > chosen.most_uncaught else 0


if __name__ == "__main__":
    raise SystemExit(main())
