"""The page on memory reckons as `check` does: its constants are the code's, and its examples come out."""

import dataclasses
import re
from pathlib import Path

from ruamel.yaml import YAML

from framegate.control.configuration import capacity
from framegate.control.configuration.capacity import memory_need, memory_warning
from framegate.proxy.config.limits import ListenerLimits
from framegate.proxy.config.model import KIB, MIB, ListenerConfig, ListenerTls, MemoryPoolConfig, ProxyConfig, TapConfig, UpstreamConfig, UpstreamTls
from tests.fakes.cases import each_of
from tests.fakes.configuration import validate

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PAGE = (DEPLOY / "docs" / "limits.md").read_text(encoding="utf-8")
SLOW_PAIR = 1.25 * MIB


def rows(heading: str) -> list[list[str]]:
    """The cells of the table after a heading, its first two lines left out."""
    lines = [line for line in PAGE.partition(heading)[2].partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def bytes_of(text: str) -> float:
    match = re.fullmatch(r"([\d.,]+)(?: (KiB|MiB))?", text)
    assert match is not None, text
    return float(match[1].replace(",", "")) * {None: 1, "KiB": KIB, "MiB": MIB}[match[2]]


CONSTANTS = rows("## The size of a container")
EXAMPLES = rows("## Examples")


@each_of("row", CONSTANTS)
def test_a_constant_is_the_codes(row: list[str]) -> None:
    assert bytes_of(row[1]) == getattr(capacity, row[0].strip("`"))


def test_every_constant_of_the_sum_is_explained() -> None:
    names = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)*\b", PAGE.partition("needed    =")[2].partition("```")[0]))
    assert names - {"TLS"} == {row[0].strip("`") for row in CONSTANTS}


def config_of(row: list[str]) -> ProxyConfig:
    _, pool, frame, tap, connections, sides = row[:6]
    listener = ListenerConfig(
        name="a",
        address="127.0.0.1:0",
        upstream="u",
        max_receive_size=int(bytes_of(frame)),
        limits=ListenerLimits(connections=int(bytes_of(connections))),
        tls=ListenerTls(certificate="c", key="k") if int(sides) else None,
    )
    return ProxyConfig(
        node="n",
        listeners=(listener,),
        upstreams=(UpstreamConfig(name="u", endpoints=("127.0.0.1:1",), tls=UpstreamTls() if int(sides) == 2 else None),),
        memory_pool=MemoryPoolConfig(size=int(bytes_of(pool))),
        tap=TapConfig(directory="t") if tap == "yes" else None,
    )


@each_of("row", EXAMPLES)
def test_an_example_comes_out(row: list[str]) -> None:
    config, processors = config_of(row), int(row[0])
    needed, container, slow = (bytes_of(cell) for cell in row[6:])
    assert -(-memory_need(config, processors).total // MIB) * MIB == needed
    assert memory_warning(config, processors, int(container)) is None
    assert memory_warning(config, processors, int(container) - MIB) is not None
    assert slow == container + 100 * SLOW_PAIR


def test_the_example_of_the_deployment_fits_its_container_with_3000_connections() -> None:
    limit = re.search(r"limits:\n\s+cpu: \"1\"\n\s+memory: (\d+)Mi", (DEPLOY / "kustomize/framegate/sidecar.yaml").read_text(encoding="utf-8"))
    assert limit is not None
    document = YAML(typ="safe").load(DEPLOY / "kustomize/example/framegate.yaml")
    del document["listeners"][0]["tls"]  # its files are in the pod only
    config = validate(document)
    listener = dataclasses.replace(config.listeners[0], tls=ListenerTls(certificate="c", key="k"), limits=ListenerLimits(connections=3_000))
    assert memory_warning(dataclasses.replace(config, listeners=(listener,)), 1, int(limit[1]) * MIB) is None
