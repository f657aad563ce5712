"""``python -m framegate.control.cli``."""

from framegate.control.cli import main

main(prog_name="framegate")
