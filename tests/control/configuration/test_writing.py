"""What is written is read back as the same configuration."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings

from framegate.control.configuration.manual import SOURCE
from framegate.control.configuration.reading import parse_document, read_document
from framegate.control.configuration.schema import build
from framegate.control.configuration.writing import as_yaml, flow
from framegate.proxy.config.key import Key
from framegate.proxy.config.model import KeepAlive, ListenerConfig, ProxyConfig, SocketConfig, TapConfig, TapRule
from tests.fakes.configurations import configurations

SMALL = ProxyConfig(node="edge", listeners=(ListenerConfig(name="a", address="127.0.0.1:0", socket=SocketConfig(keep_alive=KeepAlive())),))


def read_back(text: str) -> tuple[list[str], ProxyConfig]:
    document = parse_document(text, Path("/etc"))
    config = build(document)
    return [f"{fault}\n{text}" for fault in document.faults], config


@pytest.mark.slow
@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
@given(configurations)
@example(build(read_document(SOURCE)))
@example(SMALL)
def test_what_is_written_is_read_back_as_it_was(config: ProxyConfig) -> None:
    path = tuple("/etc" if item == "." else item for item in config.handlers.path)  # as the reader has it
    config = dataclasses.replace(config, handlers=dataclasses.replace(config.handlers, path=path))
    for defaults in (False, True):
        assert read_back(as_yaml(config, "/etc", defaults=defaults)) == ([], config)


def test_only_what_is_not_the_default_is_written_unless_all_is_wanted() -> None:
    assert as_yaml(SMALL, "/etc").splitlines() == [
        "node: edge",
        "listeners:",
        "  - name: a",
        '    address: "127.0.0.1:0"',
        "    socket:",
        "      keep_alive: {}",
    ]
    assert "    max_receive_size: 100MiB\n" in as_yaml(SMALL, "/etc", defaults=True)


def test_values_are_written_with_their_units() -> None:
    tap = TapConfig(directory="/t", max_age_ms=90_000, rules=(TapRule(name="r", expires_ns=1_798_761_600_123_456_789, sample_frames=0.25),))
    shown = {
        "[{name: r, sample_frames: 0.25, expires: 2027-01-01T00:00:00.123456789Z}]": flow(tap.rules, Key()),
        "{directory: /t, max_age: 90s, rules: [{name: r, sample_frames: 0.25, expires: 2027-01-01T00:00:00.123456789Z}]}": flow(tap, Key()),
        "null": flow(None, Key()),
        "true": flow(True, Key()),
        "1536KiB": flow(1536 * 1024, Key("bytes")),
        '{a: 1, "on": 2}': flow({"a": 1, "on": 2}, Key("percent")),
        r'"\U0000000a\"\\é"': flow('\n"\\é', Key()),
    }
    assert [(wanted, found) for wanted, found in shown.items() if wanted != found] == []
