"""A rule that comes over the API is judged by the rules of the file."""

import dataclasses
from pathlib import Path

import pytest

from control.configuration.fault import ConfigurationError
from control.configuration.load import validate
from control.configuration.tap_rule import tap_rule_faults
from proxy.config.model import TapRule

LISTENERS = {"kafka": True, "plain": False}


def test_a_good_rule_has_no_faults_even_when_its_time_is_over() -> None:
    rule = TapRule(
        name="x", listeners=("kafka",), apis=("Fetch", "3"), networks=("10.0.0.0/8", "::1/128"), blank=("0-3",), hash=("4-",), expires_ns=5
    )
    assert tap_rule_faults(rule, LISTENERS) == []
    assert tap_rule_faults(TapRule(name="x"), {}) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "X"}, "name"),
        ({"listeners": ("kafka", "none")}, "listeners[1]"),
        ({"directions": ()}, "directions"),
        ({"networks": ("10.0.0.1/8",)}, "networks[0]"),
        ({"apis": ("Fech",)}, "apis[0]"),
        ({"min_size": 9, "max_size": 8}, "min_size"),
        ({"sample_frames": 1.5}, "sample_frames"),
        ({"max_loss_percent": float("nan")}, "max_loss_percent"),
        ({"hash": ("1-2", "2-3")}, "hash"),
    ],
)
def test_a_bad_one_has_those_of_a_file(changes: dict[str, object], field: str, tmp_path: Path) -> None:
    rule = dataclasses.replace(TapRule(name="x"), **changes)  # type: ignore[arg-type]
    faults = tap_rule_faults(rule, LISTENERS)
    assert [name for name, _ in faults] == [field]
    listeners = [
        {"name": name, "address": "127.0.0.1:0", "upstream": "u", "protocol": "kafka" if kafka else "framed"} for name, kafka in LISTENERS.items()
    ]
    data = {
        "node": "n",
        "listeners": listeners,
        "upstreams": [{"name": "u", "endpoints": ["127.0.0.1:1"]}],
        "tap": {"directory": str(tmp_path), "rules": [{"name": "x", **changes}]},
    }
    with pytest.raises(ConfigurationError) as caught:
        validate(data)
    assert [(fault.key, fault.reason) for fault in caught.value.faults] == [(f"tap.rules[0].{field}", reason) for _, reason in faults]
