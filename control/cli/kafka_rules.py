"""``framegate kafka-rules``: show and change what clients may ask of Kafka."""

from typing import IO, TYPE_CHECKING, Any, Final

import click

from framegate.control.cli.client import CALL_TIMEOUT_S, calling, send
from framegate.control.cli.kinds import LISTENER
from framegate.control.cli.options import Change, admin_options, change_options, example
from framegate.control.cli.output import as_dict, print_json, print_line

if TYPE_CHECKING:
    from framegate.control.v1 import kafka_rule_service_pb2 as pb2

__all__ = ["kafka_rules"]

_KEYS: Final = ("report_only", "rules")


@click.group("kafka-rules", epilog=example("framegate kafka-rules set --listener kafka rules.yaml"))
def kafka_rules() -> None:
    """What clients may ask of Kafka: APIs, topics, groups, transactional ids."""


@kafka_rules.command(epilog=example("framegate kafka-rules get --listener kafka > rules.yaml"))
@click.option("--listener", type=LISTENER, required=True, help="The listener.")
@admin_options
def get(listener: str, address: str, output: str) -> None:
    """Show the rules in force, in the form of the section `kafka`, as `set` reads it."""
    from framegate.control.v1 import kafka_rule_service_pb2 as pb2
    from framegate.control.v1.kafka_rule_service_pb2_grpc import KafkaRuleServiceStub

    with calling(address) as channel:
        found = KafkaRuleServiceStub(channel).GetKafkaRules(pb2.GetKafkaRulesRequest(listener=listener), timeout=CALL_TIMEOUT_S).kafka_rules
    _print(found, output)


@kafka_rules.command("set", short_help="Change the rules.", epilog=example("framegate kafka-rules set --listener kafka rules.yaml --dry-run"))
@click.argument("file", type=click.File(), required=False)
@click.option("--listener", type=LISTENER, required=True, help="The listener.")
@click.option("--report-only/--enforce", default=None, help="Only count and log what the rules would refuse; or refuse it.")
@change_options()
@admin_options
def set_(file: IO[str] | None, listener: str, report_only: bool | None, change: Change, address: str, output: str) -> None:
    """Change the rules of a listener to those of a file, in all processors or in none. Returns when the change is in force.

    The file is YAML with the keys `rules` and `report_only` of the section `kafka`; - reads standard input. Changes are lost at a restart, when the
    configuration file applies again.
    """
    from google.protobuf.json_format import ParseDict, ParseError

    from framegate.control.v1 import kafka_rule_service_pb2 as pb2
    from framegate.control.v1.kafka_rule_service_pb2_grpc import KafkaRuleServiceStub

    given = {} if file is None else _read(file)
    try:
        wanted = ParseDict(given, pb2.KafkaRules())
    except ParseError as error:
        raise click.BadParameter(str(error), param_hint="FILE") from error
    wanted.listener = listener
    if report_only is not None:
        wanted.report_only = report_only
    if not given and report_only is None:
        raise click.UsageError("give a file with rules, --report-only or --enforce")
    request = pb2.UpdateKafkaRulesRequest(kafka_rules=wanted)
    request.update_mask.paths.extend(name for name in _KEYS if name in given or (name == "report_only" and report_only is not None))
    with calling(address, change=not change.dry_run) as channel:
        found = send(KafkaRuleServiceStub(channel).UpdateKafkaRules, request, change).kafka_rules
    _print(found, output)


def _read(file: IO[str]) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(file)
    except yaml.YAMLError as error:
        raise click.BadParameter(f"is no YAML: {error}", param_hint="FILE") from error
    if not isinstance(found, dict) or set(found) - set(_KEYS) or not found:
        raise click.BadParameter(f"must have the keys {' and '.join(_KEYS)}, or one of them", param_hint="FILE")
    return found


def _print(found: "pb2.KafkaRules", output: str) -> None:
    if output == "json":
        print_json(as_dict(found))
        return
    import yaml

    rules = [{field.name: list(value) for field, value in rule.ListFields()} for rule in found.rules]
    for line in yaml.safe_dump({"report_only": found.report_only, "rules": rules}, sort_keys=False).splitlines():
        print_line(line)
