"""What ``make run-kafka`` and ``make dashboards`` run: ``python tests/demo kafka`` and ``python tests/demo dashboards``, each with ``--help``.

``python tests/demo records JSON`` and ``fetches JSON`` are the Kafka clients of the former (``records``), as processes.
"""

import argparse
import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]


def bind_tests_package() -> None:
    """Bind the name ``tests`` to the folder of the tests, as ``tests/conftest.py`` does."""
    spec = importlib.machinery.ModuleSpec("tests", None, is_package=True)
    spec.submodule_search_locations = [str(TESTS)]
    sys.modules["tests"] = importlib.util.module_from_spec(spec)


def arguments_of(words: list[str]) -> argparse.Namespace:
    """The command line of ``kafka`` and ``dashboards``."""
    from tests.demo.troubles import TROUBLES

    parser = argparse.ArgumentParser(prog="python tests/demo")
    demos = parser.add_subparsers(dest="demo", required=True)
    kafka = demos.add_parser("kafka", help="the demo in front of three real Apache Kafka brokers")
    dashboards = demos.add_parser("dashboards", help="a collector, Prometheus and the dashboards, in calm and in every trouble")
    for one in (kafka, dashboards):
        one.add_argument("--directory", type=Path, help="the folder of all files; what an earlier demo left there is deleted first")
    dashboards.add_argument("--trouble", action="append", default=[], choices=[one.name for one in TROUBLES], help="this one only; may be repeated")
    dashboards.add_argument("--pictures", type=Path, help="where to draw every dashboard, as PNG")
    return parser.parse_args(words)


def exchange(clients: str, options: str) -> int:
    """Run Kafka's clients with the options of a JSON object."""
    from tests.demo import records

    def write(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)

    work = records.exchange if clients == "records" else records.fetch_large
    write({"event": "final", **work(records.Options(**json.loads(options)), write)})
    return 0


def main(words: list[str]) -> int:
    """Returns the exit code."""
    bind_tests_package()
    if words[:1] in (["records"], ["fetches"]):
        return exchange(*words)
    given = arguments_of(words)
    if given.demo == "kafka":
        from tests.demo import kafka

        return kafka.run(given.directory)
    from tests.demo import dashboards

    return dashboards.run(TESTS.parent / "deploy", only=given.trouble, pictures=given.pictures, directory=given.directory)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
