"""The rule file of Prometheus, and the same as a PrometheusRule of its operator: YAML, from the list of problems."""

from typing import Any, Final

import yaml

from dashboards.problems import Rule, rules_of
from dashboards.trouble import PROBLEMS

__all__ = ["RUNBOOK", "groups", "prometheus_rule", "rule_file"]

RUNBOOK: Final = "deploy/alerts/RUNBOOK.md"
WRITTEN: Final = "# Written by `python deploy/dashboards`, from deploy/dashboards/trouble.py.\n"


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _entry(rule: Rule, runbook: str) -> dict[str, Any]:
    return {
        "alert": rule.alert,
        "expr": rule.expr,
        "for": rule.hold,
        "labels": {"severity": rule.severity},
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "runbook_url": f"{runbook}#{rule.alert.lower()}",
        },
    }


def groups(runbook: str = RUNBOOK) -> list[dict[str, Any]]:
    """The groups of rules. ``runbook``: the runbook's address."""
    return [{"name": "framegate", "rules": [_entry(rule, runbook) for problem in PROBLEMS for rule in rules_of(problem)]}]


def _yaml(document: dict[str, Any]) -> str:
    return WRITTEN + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)


def rule_file(runbook: str = RUNBOOK) -> str:
    """``rule_files`` of prometheus.yml name it."""
    return _yaml({"groups": groups(runbook)})


def prometheus_rule(runbook: str = RUNBOOK) -> str:
    """For Prometheus' operator."""
    metadata = {"name": "framegate", "labels": {"app.kubernetes.io/name": "framegate"}}
    return _yaml({"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule", "metadata": metadata, "spec": {"groups": groups(runbook)}})
