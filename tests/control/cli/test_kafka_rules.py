"""``framegate kafka-rules``."""

from pathlib import Path

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


def test_of_a_wrong_file_every_fault_is_told_with_file_line_key_and_what_is_right(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    for text, *faults in [
        ("", "line 1: the document: is empty"),
        ("a list", "line 1: the document = a list: must be a mapping of keys to values"),
        (
            "report_only: true\nrules: [",
            "line 2: the document: is not YAML: while parsing a flow node, expected the node content, but found '<stream end>'",
        ),
        ("colour: red", "line 1: colour: is not a known key; known here: report_only, rules, unknown_versions"),
        ("rules:\n- topic: [x]", "line 2: rules[0].topic: is not a known key; did you mean topics?"),
        ("rules:\n- deny: DeleteTopics", "line 2: rules[0].deny = DeleteTopics: must be a list"),
        ("rules:\n- deny:\n  - 7", "line 3: rules[0].deny[0] = 7: is no API of Kafka that clients use; did you mean"),
        (
            "report_only: 7\nrules:\n- deny:\n  - Fetch\n  - DeletTopics\n",
            "line 1: report_only = 7: must be true or false",
            "line 5: rules[0].deny[1] = DeletTopics: is no API of Kafka that clients use; did you mean DeleteTopics?",
        ),
        (
            "unknown_versions: pass",
            "line 1: unknown_versions = pass: cannot be changed while framegate runs: set it in the configuration file, and restart",
        ),
    ]:
        path.write_text(text)
        result = cli("kafka-rules", "set", "--listener", "kafka", str(path))
        assert result.exit_code == 2, text
        told = result.stderr.splitlines()
        assert len(told) == len(faults), told
        assert all(line.startswith(f"framegate: {path}: {fault}") for line, fault in zip(told, faults, strict=True)), told
    assert cli.plane.config.listeners[0].kafka.rules == ()


def test_set_needs_something_to_change(cli: Cli) -> None:
    assert "give a file" in cli("kafka-rules", "set", "--listener", "kafka").stderr
