"""The bill of materials of an image: CycloneDX 1.6, every Python package and every Debian package that something in the image is from."""

from __future__ import annotations

import datetime
import json
import subprocess
import uuid
from importlib import metadata
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FORMAT = "${binary:Package}\t${Version}\t${Architecture}\t${source:Package}\t${source:Version}\n"
RELEASE = "debian-13"


def owners(paths: Iterable[Path]) -> set[str]:
    """The Debian packages that files are from; of files that are from none there is none."""
    told = subprocess.run(
        ["dpkg-query", "--search", *sorted(map(str, paths))], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
    ).stdout
    lines = [line for line in told.splitlines() if not line.startswith("diversion by ")]
    return {name.strip().partition(":")[0] for line in lines for name in line.partition(": ")[0].split(",")}


def installed() -> list[str]:
    """Every Debian package that is installed."""
    told = subprocess.run(
        ["dpkg-query", "--show", "--showformat", "${db:Status-Abbrev}${Package}\n"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    return sorted({line[3:] for line in told.splitlines() if line.startswith("ii")})


def debian_components(names: list[str]) -> list[dict[str, Any]]:
    """Debian packages, each with the source that security notices name."""
    told = subprocess.run(["dpkg-query", "--show", "--showformat", FORMAT, *names], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [debian_component(*line.split("\t")) for line in sorted(told.splitlines())]


def debian_component(name: str, version: str, architecture: str, source: str, source_version: str) -> dict[str, Any]:
    """One Debian package."""
    name = name.partition(":")[0]
    upstream = quote(f"{source}@{source_version}", safe="")
    url = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={architecture}&distro={RELEASE}&upstream={upstream}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def python_components(environment: Path) -> list[dict[str, Any]]:
    """Python packages of an environment."""
    (folder,) = environment.glob("lib/python3.*/site-packages")
    found = sorted(metadata.distributions(path=[str(folder)]), key=lambda package: package.metadata["Name"].lower())
    return [python_component(package) for package in found]


def python_component(package: metadata.Distribution) -> dict[str, Any]:
    """One Python package, and its licence if it names one in the form that is asked for today."""
    name, version = package.metadata["Name"].lower().replace("_", "-").replace(".", "-"), package.version
    url = f"pkg:pypi/{quote(name)}@{quote(version, safe='')}"
    component: dict[str, Any] = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
    if "License-Expression" in package.metadata:
        component["licenses"] = [{"expression": package.metadata["License-Expression"]}]
    return component


def document(environment: Path, packages: list[str], epoch: int) -> str:
    """The bill as JSON.

    Args:
        environment: that holds framegate.
        packages: Debian's, by name.
        epoch: the time that it bears, seconds since 1970.
    """
    every = python_components(environment)
    (own,) = (component for component in every if component["name"] == "framegate")
    components = [component for component in every if component is not own] + debian_components(packages)
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(every + components)).urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(epoch, datetime.UTC).isoformat(),
            "component": {**own, "type": "application"},
        },
        "components": components,
    }
    return json.dumps(bill, indent=1) + "\n"
