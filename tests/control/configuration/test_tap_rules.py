"""The tap's rules and sizes. A rule that comes over the API is judged by the rules of the file."""

import pathlib
from typing import Any

from framegate.control.configuration.tap_rules import tap_rule_faults
from framegate.proxy.config.model import TapRule
from tests.control.configuration.conftest import unwarned
from tests.fakes.configuration import misnamed, put, warnings


def test_a_broken_rule_is_named_at_its_key(data: dict[str, Any]) -> None:
    cases = [
        ("tap.ship", {"to": "/mnt/taps"}, "tap.ship.to", "must begin with s3://"),
        ("tap.ship", {"to": "s3://k:s@bucket"}, "tap.ship.to", "credentials are taken from the environment"),
        ("tap.ship", {"interval": "5s"}, "tap.ship.to", "is required"),
        ("tap.ship", {"to": "s3://bucket", "interval": "999ms"}, "tap.ship.interval", "must be from 1s to 1h"),
        ("tap.ship", {"to": "s3://bucket", "keep": "all"}, "tap.ship.keep", "must be 'budget' or 'shipped'"),
        ("tap.rules.0.listeners", ["kafkaa"], "tap.rules[0].listeners[0]", "there are: kafka, plain"),
        ("tap.rules.0.networks", ["10.0.0.1/8"], "tap.rules[0].networks[0]", "is not a network"),
        ("tap.rules.0.directions", [], "tap.rules[0].directions", "request, response or both"),
        ("tap.rules.0.apis", ["Fetch", "Fetsch"], "tap.rules[0].apis[1]", "is not a Kafka API"),
        ("tap.rules.0.blank", ["0-15", "9-8"], "tap.rules[0].blank[1]", "is not a range of bytes"),
        ("tap.rules.0.hash", ["15-20", "0-15"], "tap.rules[0].hash", "in two ranges"),
        ("tap.rules.0", {"name": "a", "min_size": "2KiB", "max_size": "1KiB"}, "tap.rules[0].min_size", "is above max_size (1KiB)"),
        ("tap.rules.0.sample_frames", 1.5, "tap.rules[0].sample_frames", "must be from 0.0 to 1.0"),
        ("tap.rules.0.max_cpu_percent", 101, "tap.rules[0].max_cpu_percent", "must be from 0.0 to 100.0"),
        ("tap.rules.0.expires", "later", "tap.rules[0].expires", "is not an instant"),
        ("tap.flush_size", "16MiB", "tap.flush_size", "must not be larger than queue_size"),
        ("tap.budget", "64MiB", "tap.budget", "must not be larger than budget"),
    ]
    assert misnamed(data, cases) == []


def test_a_key_that_has_no_effect_is_a_warning(data: dict[str, Any], tmp_path: pathlib.Path) -> None:
    data["tap"]["budget"] = "128MiB"
    assert warnings(data, tmp_path) == []
    cases: list[tuple[str, object, str, str]] = [
        ("tap.rules.0", {"name": "a", "capture": "hash", "max_frame_bytes": 5}, "tap.rules[0].max_frame_bytes", "has no effect: capture is hash"),
        ("tap.rules.0", {"name": "a", "capture": "lengths", "blank": ["0-"]}, "tap.rules[0].blank", "has no effect: capture is lengths"),
        ("tap.rules.0", {"name": "a", "on_full": "mute", "max_loss_percent": 5}, "tap.rules[0].max_loss_percent", "which loses nothing"),
        ("tap.rules.0", {"name": "a", "apis": ["Fetch"]}, "tap.rules[0].apis", "no listener of the rule has protocol kafka"),
        ("tap.rules.0", {"name": "a", "clients": ["a*"], "listeners": ["plain"]}, "tap.rules[0].clients", "has protocol kafka"),
        ("tap.rules.0", {"name": "a", "expires": "2001-01-01T00:00:00Z"}, "tap.rules[0].expires", "has passed"),
    ]
    assert unwarned(data, tmp_path, cases) == []
    data["listeners"][1]["protocol"] = "kafka"
    for rule in ({"apis": ["Fetch"]}, {"clients": ["a*"], "listeners": ["plain"]}):
        assert warnings(put(data, "tap.rules.0", {"name": "a", "expires": "1h", **rule}), tmp_path) == []


LISTENERS = {"kafka": True, "plain": False}


def test_a_good_rule_has_no_faults_even_when_its_time_is_over() -> None:
    rule = TapRule(
        name="x", listeners=("kafka",), apis=("Fetch", "3"), networks=("10.0.0.0/8", "::1/128"), blank=("0-3",), hash=("4-",), expires_ns=5
    )
    assert tap_rule_faults(rule, LISTENERS) == []
    assert tap_rule_faults(TapRule(name="x"), {}) == []


def test_a_key_that_has_no_effect_beside_capture_is_a_fault_of_a_call() -> None:
    rule = TapRule(name="x", capture="lengths", blank=("0-3",), max_frame_bytes=5, on_full="mute", max_loss_percent=3.0)
    reason = "has no effect: capture is lengths, which keeps no bytes of bodies"
    assert tap_rule_faults(rule, LISTENERS) == [("max_frame_bytes", reason), ("blank", reason)]
