"""Write the tables of metrics and variables: ``python -m framegate.control.telemetry [--output FILE]``, from a checkout."""

import argparse
import pathlib
import sys
from typing import Final

from framegate.control.telemetry.catalogue import document

_DOCUMENT: Final = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "metrics.md"


def main() -> int:
    """The command line; prints what was written."""
    parser = argparse.ArgumentParser(prog="python -m framegate.control.telemetry", description="Write the tables of metrics and OTEL_* variables.")
    parser.add_argument("--output", type=pathlib.Path, default=_DOCUMENT, metavar="FILE", help="default: deploy/metrics.md of this checkout")
    output: pathlib.Path = parser.parse_args().output
    output.write_text(document())
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
