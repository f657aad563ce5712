"""``framegate doctor``."""

import os
import pathlib
import sys
import time
from typing import TYPE_CHECKING, Final

import click

from control.cli.kinds import ADDRESS, DURATION
from control.cli.options import ADDRESS_VARIABLE, DEFAULT_ADDRESS, example, output_option

if TYPE_CHECKING:
    from control.doctor.finding import Finding

__all__ = ["doctor"]

USUAL_FILE: Final = pathlib.Path("/etc/framegate/framegate.yaml")
"""Where the image, the unit and the manifests have it."""
_LEAST_MS, _MOST_MS = 100, 600_000


@click.command(
    short_help="Look at framegate's surroundings, and say what to do.",
    epilog=example("framegate doctor", "framegate doctor --config framegate.yaml --output json", "framegate doctor --strict --timeout 2s"),
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
    help=f"The configuration file.  [default: {USUAL_FILE}, if it is there]",
)
@click.option(
    "--address",
    envvar=ADDRESS_VARIABLE,
    type=ADDRESS,
    show_envvar=True,
    help=f"Where the control plane is: unix:PATH.  [default: admin.address of the configuration, or {DEFAULT_ADDRESS}]",
)
@click.option("--timeout", type=DURATION, default="5s", show_default=True, help="For each thing that is looked at, 100ms to 10m.")
@click.option("--strict", is_flag=True, help="End with 1 for warnings as well.")
@output_option
def doctor(config: pathlib.Path | None, address: str | None, timeout: int, strict: bool, output: str) -> None:
    """Look at framegate's surroundings, and say of each thing what was found and what to do.

    Limits of processes, memory and CPUs of the container, certificates, upstreams (name, connect, TLS, frames), names, collectors (an empty export
    to each), the clock, the tap's disk, permissions, settings of the kernel, Kubernetes, and the framegate that runs here. It harms nothing: every
    look is bounded in time, one file is written to the tap's disk that is gone at once, no key or password is shown. Run it where framegate runs, and
    as its user.

    Exit codes: 0 good, with or without warnings; 1 there is a fault; 2 wrong usage.
    """
    if not _LEAST_MS <= timeout <= _MOST_MS:
        raise click.BadParameter("must be from 100ms to 10m", param_hint="'--timeout'")
    from control.cli.client import EXIT_FAILED  # it also keeps grpc's own lines from standard error
    from control.cli.output import counted, print_json, print_note
    from control.cli.reach import unreachable
    from control.doctor.examination import examine_all
    from control.doctor.finding import counts, report, sorted_findings, worst
    from control.doctor.running import own_version
    from control.doctor.surroundings import Surroundings

    path = config or (USUAL_FILE if USUAL_FILE.is_file() else None)
    around = Surroundings(timeout_s=timeout / 1000, environment=os.environ)
    found = examine_all(around, path, address or None, default=DEFAULT_ADDRESS, why=unreachable, version=own_version())
    if output == "json":
        print_json(report(found.findings, version=own_version(), config=None if path is None else str(path), address=found.address, now=time.time()))
    else:
        _print(sorted_findings(found.findings))
    numbers = counts(found.findings)
    said = (counted(numbers["fault"], "fault"), counted(numbers["warning"], "warning"), f"{numbers['unknown']} unknown", f"{numbers['ok']} ok")
    print_note(", ".join(said))
    level = worst(found.findings)
    if level == "fault" or (strict and level == "warning"):
        sys.exit(EXIT_FAILED)


def _print(findings: "list[Finding]") -> None:
    """Sentences are too long for cells: one on each line, and what to do below."""
    from control.cli.output import shown, write_text

    for item in findings:
        write_text(f"{item.level:<9}{item.area:<15}{shown(item.subject)}: {shown(item.found)}\n")
        if item.advice:
            write_text(f"{'':<24}→ {shown(item.advice)}\n")
