"""``make cluster-test``: the sidecar on a real node.

Builds the programs of a node, makes the images, and runs this folder's tests in namespaces of their own. On a machine without root or Go it prints
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


def bind_tests_package() -> None:
    """Bind the name ``tests`` to the folder of the tests, as ``tests/conftest.py`` does."""
    spec = importlib.machinery.ModuleSpec("tests", None, is_package=True)
    spec.submodule_search_locations = [str(TESTS)]
    sys.modules["tests"] = importlib.util.module_from_spec(spec)


def main(arguments: list[str]) -> int:
    """Returns the exit code of pytest, or 0 where nothing can be run."""
    bind_tests_package()
    from tests.cluster import components, images, machine
    from tests.demo.broker import BrokerError, missing_tools

    components.install_packages()
    missing = [*components.missing(), *missing_tools()]
    if missing:
        print("not run: this machine lacks " + "; ".join(missing))
        return 0
    started = time.monotonic()
    try:
        components.build()
        archives = images.make()
    except (components.BuildError, images.ImageError, BrokerError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    print(f"cluster: programs and images are there: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    named = any(Path(word.partition("::")[0]).exists() for word in arguments)
    words = arguments if named else [str(TESTS / "cluster"), *arguments]  # options alone would run every test that there is
    with tempfile.TemporaryDirectory(prefix="framegate-cluster-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "FRAMEGATE_CLUSTER_IMAGES": str(archives)}
        return machine.run_apart([sys.executable, "-m", "pytest", "-n", "0", "-s", "--timeout", "900", *words], environment, Path(folder))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
