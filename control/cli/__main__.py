"""``python -m control.cli``."""

from control.cli import main

main(prog_name="framegate")
