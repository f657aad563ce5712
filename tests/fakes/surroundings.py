"""Surroundings of the doctor's in a folder: files of the system as a test writes them, and configurations."""

from pathlib import Path
from typing import Any

from framegate.control.doctor.finding import Finding
from framegate.control.doctor.surroundings import Surroundings
from framegate.proxy.config.model import ListenerConfig, ProxyConfig, UpstreamConfig


def config_of(
    endpoint: str = "127.0.0.1:1", listener: dict[str, Any] | None = None, upstream: dict[str, Any] | None = None, **keys: Any
) -> ProxyConfig:
    return ProxyConfig(
        node="test",
        listeners=(ListenerConfig(**{"name": "in", "address": "127.0.0.1:0", "upstream": "up", **(listener or {})}),),
        upstreams=(UpstreamConfig(**{"name": "up", "endpoints": (endpoint,), **(upstream or {})}),),
        **{"processors": 1, **keys},
    )


def around(root: Path, files: dict[str, str] | None = None, **fields: Any) -> Surroundings:
    """The system's files are these, below a folder."""
    for name, text in (files or {}).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Surroundings(**{"root": root, **fields})


def one(findings: Any, subject: str) -> Finding:
    found = [item for item in findings if subject in item.subject]
    assert len(found) == 1, found
    return found[0]


def levels(findings: Any) -> list[str]:
    return [item.level for item in findings]
