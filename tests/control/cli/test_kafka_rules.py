"""``framegate kafka-rules``."""

from pathlib import Path

import pytest
import yaml

from framegate.proxy.config.model import KafkaRule
from tests.fakes.cli import Cli

RULES = "report_only: true\nrules:\n- principals: [a*]\n  deny: [DeleteTopics]\n"


def test_what_get_shows_set_reads(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    words = ("kafka-rules", "set", "--listener", "kafka")
    assert cli(*words, str(path), "--dry-run").exit_code == 0
    assert cli.plane.config.listeners[0].kafka.rules == ()
    assert cli(*words, str(path)).exit_code == 0
    shown = cli("kafka-rules", "get", "--listener", "kafka").stdout
    assert yaml.safe_load(shown) == yaml.safe_load(RULES)
    rules = cli.plane.config.listeners[0].kafka
    assert (rules.report_only, rules.rules) == (True, (KafkaRule(principals=("a*",), deny=("DeleteTopics",)),))
    assert cli(*words, "--enforce").exit_code == 0
    assert not cli.plane.config.listeners[0].kafka.report_only
    path.write_text(shown)
    assert cli(*words, str(path), "--etag", "old").exit_code != 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must have the keys"),
        ("colour: red", "must have the keys"),
        ("rules: [", "is no YAML"),
        ("rules: [{topic: [x]}]", "topic"),
        ("rules: [{deny: [DeletTopics]}]", "did you mean DeleteTopics"),
    ],
)
def test_a_file_that_cannot_be_rules_is_refused(cli: Cli, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    result = cli("kafka-rules", "set", "--listener", "kafka", str(path))
    assert result.exit_code != 0
    assert said in result.stderr


def test_set_needs_something_to_change(cli: Cli) -> None:
    assert "give a file" in cli("kafka-rules", "set", "--listener", "kafka").stderr
