"""The harness is a folder that is run (`python tests/benchmarks`): its modules are found beside each other."""

import sys
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
