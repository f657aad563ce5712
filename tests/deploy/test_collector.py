"""The collector's configuration: its shape, and every component that a pipeline names is defined and used."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

COLLECTOR = Path(__file__).resolve().parents[2] / "deploy" / "collector" / "collector.yaml"
KINDS = ("receivers", "processors", "exporters")
NAMES = {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True}
COMPONENTS = {"type": "object", "propertyNames": {"pattern": "^[a-z][a-z0-9_]*(/[a-z0-9_]+)?$"}, "minProperties": 1}
SCHEMA = {
    "type": "object",
    "required": ["receivers", "exporters", "service"],
    "additionalProperties": False,
    "properties": {
        "extensions": COMPONENTS,
        "receivers": {**COMPONENTS, "properties": {"otlp": {"required": ["protocols"], "properties": {"protocols": {"required": ["grpc"]}}}}},
        "processors": {
            **COMPONENTS,
            "properties": {
                "memory_limiter": {"required": ["check_interval", "limit_mib"]},
                "batch": {"properties": {"timeout": {"type": "string", "pattern": "^[0-9]+(ms|s)$"}}},
            },
        },
        "exporters": {**COMPONENTS, "properties": {"prometheus": {"required": ["endpoint"]}, "otlp": {"required": ["endpoint"]}}},
        "service": {
            "type": "object",
            "required": ["pipelines"],
            "additionalProperties": False,
            "properties": {
                "extensions": NAMES,
                "telemetry": {"type": "object"},
                "pipelines": {
                    "type": "object",
                    "propertyNames": {"pattern": "^(metrics|traces|logs)(/[a-z0-9_]+)?$"},
                    "minProperties": 1,
                    "additionalProperties": {
                        "type": "object",
                        "required": ["receivers", "exporters"],
                        "additionalProperties": False,
                        "properties": dict.fromkeys(KINDS, NAMES),
                    },
                },
            },
        },
    },
}


@pytest.fixture(scope="module")
def collector() -> dict[str, Any]:
    document: dict[str, Any] = YAML(typ="safe").load(COLLECTOR.read_text())
    return document


def undefined(document: dict[str, Any]) -> set[str]:
    """The components that a pipeline or the service names and nothing defines."""
    pipelines = document["service"]["pipelines"].values()
    named = {f"{kind}/{name}" for pipeline in pipelines for kind in KINDS for name in pipeline.get(kind, [])}
    named |= {f"extensions/{name}" for name in document["service"].get("extensions", [])}
    return named - {f"{kind}/{name}" for kind in (*KINDS, "extensions") for name in document.get(kind, {})}


def test_it_has_the_shape_of_a_collector_configuration_and_pipelines_name_defined_components_only(collector: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(collector)
    assert undefined(collector) == set()
    collector["service"]["pipelines"]["metrics"]["exporters"].append("nowhere")
    assert undefined(collector) == {"exporters/nowhere"}
    collector["service"]["pipelines"]["metrics"]["exporters"].remove("nowhere")


def test_metrics_go_from_otlp_to_prometheus_with_memory_limited_first(collector: dict[str, Any]) -> None:
    pipeline = collector["service"]["pipelines"]["metrics"]
    assert pipeline["receivers"] == ["otlp"]
    assert "prometheus" in pipeline["exporters"]
    assert pipeline["processors"][0] == "memory_limiter"
    assert collector["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].endswith(":4317")
