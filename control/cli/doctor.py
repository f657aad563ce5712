"""``framegate doctor``."""

import os
import pathlib
import sys
import time
from typing import TYPE_CHECKING, Final

import click

from framegate.control.cli.client import EXIT_FAILED
from framegate.control.cli.kinds import ADDRESS, DURATION
from framegate.control.cli.options import ADDRESS_VARIABLE, DEFAULT_ADDRESS, example, output_option
from framegate.control.cli.output import counted, print_json, print_note, shown, write_text

if TYPE_CHECKING:
    from framegate.control.doctor.finding import Finding

USUAL_FILE: Final = pathlib.Path("/etc/framegate/framegate.yaml")
"""The path of the configuration in the image, the systemd unit and the Kubernetes manifests."""
_LEAST_MS, _MOST_MS = 100, 600_000


@click.command(
    short_help="Check the environment of framegate, and advise on faults.",
    epilog=example("framegate doctor", "framegate doctor --config framegate.yaml --output json", "framegate doctor --strict --timeout 2s"),
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path),
    help=f"The configuration file.  [default: {USUAL_FILE}, if it exists]",
)
@click.option(
    "--address",
    envvar=ADDRESS_VARIABLE,
    type=ADDRESS,
    show_envvar=True,
    help=f"Address of the admin API: unix:PATH.  [default: admin.address of the configuration, or {DEFAULT_ADDRESS}]",
)
# The first call of the API loads gRPC in control, which takes 0.2 s of processor time.
@click.option("--timeout", type=DURATION, default="2s", show_default=True, help="Time limit of all checks together, 100ms to 10m.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@output_option
def doctor(config: pathlib.Path | None, address: str | None, timeout: int, strict: bool, output: str) -> None:
    """Check the environment of framegate. Prints each finding, and what to do about faults and warnings.

    Checks process limits, the container's memory and CPUs, certificates, upstreams (name, connection, TLS, frames), name resolution, telemetry
    collectors (sends an empty export to each), the clock, the tap's disk, file permissions, kernel settings, Kubernetes, and the running framegate.

    The command makes no changes, except that it writes a test file to the tap's disk and deletes it. It shows no keys or passwords. Run it on
    framegate's machine or in its container, as framegate's user.

    Exit codes: 0 no fault (with --strict: and no warning); 1 a fault; 2 wrong usage.
    """
    if not _LEAST_MS <= timeout <= _MOST_MS:
        raise click.BadParameter("must be from 100ms to 10m", param_hint="'--timeout'")
    from framegate.control.cli.reach import unreachable
    from framegate.control.doctor.examination import examine_all
    from framegate.control.doctor.finding import counts, report, sorted_findings, worst
    from framegate.control.doctor.surroundings import Surroundings
    from framegate.control.version import installed_version

    path = config or (USUAL_FILE if USUAL_FILE.is_file() else None)
    around = Surroundings(timeout_s=timeout / 1000, environment=os.environ)
    version = installed_version()
    found = examine_all(around, path, address or None, default=DEFAULT_ADDRESS, why=unreachable, version=version)
    if output == "json":
        print_json(report(found.findings, version=version, config=None if path is None else str(path), address=found.address, now=time.time()))
    else:
        _print(sorted_findings(found.findings))
    numbers = counts(found.findings)
    said = (counted(numbers["fault"], "fault"), counted(numbers["warning"], "warning"), f"{numbers['unknown']} unknown", f"{numbers['ok']} ok")
    print_note(", ".join(said))
    level = worst(found.findings)
    if level == "fault" or (strict and level == "warning"):
        sys.exit(EXIT_FAILED)


def _print(findings: "list[Finding]") -> None:
    """One line for each finding, with the advice below it; the sentences are too long for a table."""
    for item in findings:
        write_text(f"{item.level:<9}{item.area:<15}{shown(item.subject)}: {shown(item.found)}\n")
        if item.advice:
            write_text(f"{'':<24}→ {shown(item.advice)}\n")
