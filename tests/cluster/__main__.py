"""``make cluster-test``: the sidecar on a real node.

Builds the programs of a node, makes the images, and runs this folder's tests in namespaces of their own, with the newest version of Kubernetes; then
those that need no node with the oldest. ``ARGS="--kubernetes=1.29,1.33"`` runs all with these versions. Tests marked ``extended`` run when ``ARGS``
names their file. On a machine without root or Go it prints
``not run: …`` and the exit code is 0.
"""

import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
KUBERNETES = "--kubernetes="
WITHOUT_A_NODE = [f"tests/cluster/{name}.py" for name in ("test_dry_run", "test_admission")]


def bind_tests_package() -> None:
    """Bind the name ``tests`` to the folder of the tests, as ``tests/conftest.py`` does."""
    spec = importlib.machinery.ModuleSpec("tests", None, is_package=True)
    spec.submodule_search_locations = [str(TESTS)]
    sys.modules["tests"] = importlib.util.module_from_spec(spec)


def main(arguments: list[str]) -> int:
    """Returns the first exit code of pytest that is not 0, or 0 where nothing can be run."""
    bind_tests_package()
    from tests.cluster import components, images
    from tests.demo.broker import BrokerError, missing_tools

    versions = [name for word in arguments if word.startswith(KUBERNETES) for name in word.removeprefix(KUBERNETES).split(",")]
    words = [word for word in arguments if not word.startswith(KUBERNETES)]
    if unknown := [name for name in versions if name not in components.KUBERNETES]:
        print(f"cluster: {', '.join(unknown)} is not one of {', '.join(components.KUBERNETES)}", file=sys.stderr)
        return 2
    components.install_packages()
    missing = [*components.missing(), *missing_tools()]
    if missing:
        print("not run: this machine lacks " + "; ".join(missing))
        return 0
    runs = [(name, words) for name in versions] or [(components.NEWEST, words)]
    if not arguments:
        runs.append((components.OLDEST, WITHOUT_A_NODE))
    try:
        for version, chosen in runs:
            os.environ[components.VERSION] = version
            started = time.monotonic()
            components.build()
            archives = None if chosen and all(word in WITHOUT_A_NODE for word in chosen) else images.make()
            print(f"cluster: programs and images are there: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            if code := run(chosen, archives):
                return code
    except (components.BuildError, images.ImageError, BrokerError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def run(arguments: list[str], archives: Path | None) -> int:
    """Run tests in namespaces of their own, with a node if there are images. Returns the exit code of pytest."""
    from tests.cluster import images, machine

    named = any(Path(word.partition("::")[0]).exists() for word in arguments)
    words = arguments if named else [str(TESTS / "cluster"), *arguments]  # options alone would run every test that there is
    with tempfile.TemporaryDirectory(prefix="framegate-cluster-", ignore_cleanup_errors=True) as folder:
        environment = {"FRAMEGATE_TESTS": "short", **os.environ, **({images.IMAGES: str(archives)} if archives else {})}
        return machine.run_apart([sys.executable, "-m", "pytest", "-n", "0", "-s", "--timeout", "900", *words], environment, Path(folder))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
