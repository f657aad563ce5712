"""Write the dashboards and the alerts anew: ``python deploy/dashboards``."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])

from dashboards.write import main  # noqa: E402

if __name__ == "__main__":
    main(sys.argv[1:])
