"""``framegate kafka-rules``: show and change what clients may ask of Kafka."""

import dataclasses
import sys
from typing import IO, TYPE_CHECKING, Any, Final

import click

from framegate.control.cli.client import Service, calling
from framegate.control.cli.kinds import LISTENER
from framegate.control.cli.options import Change, admin_options, change_options, example
from framegate.control.cli.output import as_dict, print_json, print_line, print_note

if TYPE_CHECKING:
    from framegate.control.v1 import kafka_rule_service_pb2 as pb2
    from framegate.proxy.config.model import KafkaRules

_SERVICE: Final = Service("kafka_rule")


@click.group("kafka-rules", epilog=example("framegate kafka-rules set --listener kafka rules.yaml"))
def kafka_rules() -> None:
    """What clients may ask of Kafka: APIs, topics, groups, transactional ids."""


@kafka_rules.command(epilog=example("framegate kafka-rules get --listener kafka > rules.yaml"))
@click.option("--listener", type=LISTENER, required=True, help="The listener.")
@admin_options
def get(listener: str, address: str, output: str) -> None:
    """Show the rules in force, in the form of the section `kafka`, as `set` reads it."""
    with calling(address) as channel:
        _print(_SERVICE.ask(channel, "GetKafkaRules", listener=listener).kafka_rules, output)


@kafka_rules.command("set", short_help="Change the rules.", epilog=example("framegate kafka-rules set --listener kafka rules.yaml --dry-run"))
@click.argument("file", type=click.File(errors="replace"), required=False)
@click.option("--listener", type=LISTENER, required=True, help="The listener.")
@click.option("--report-only/--enforce", default=None, help="Only count and log what the rules would refuse; or refuse it.")
@change_options()
@admin_options
def set_(file: IO[str] | None, listener: str, report_only: bool | None, change: Change, address: str, output: str) -> None:
    """Change the rules of a listener to those of a file, in all processors or in none. Returns when the change is in force.

    The file is YAML with the keys `rules` and `report_only` of the section `kafka`; - reads standard input. Changes are lost at a restart, when the
    configuration file applies again.
    """
    if file is None and report_only is None:
        raise click.UsageError("give a file with rules, --report-only or --enforce")
    wanted: dict[str, Any] = {"listener": listener}
    given: set[str] = set()
    if file is not None:
        rules, given = _read(file)
        wanted |= {"report_only": rules.report_only, "rules": [dataclasses.asdict(rule) for rule in rules.rules]}
    if report_only is not None:
        wanted.update(report_only=report_only)
        given.add("report_only")
    with calling(address, change=not change.dry_run) as channel:
        answer = _SERVICE.change(channel, "UpdateKafkaRules", change, kafka_rules=wanted, update_mask={"paths": sorted(given)})
    _print(answer.kafka_rules, output)


def _read(file: IO[str]) -> "tuple[KafkaRules, set[str]]":
    """The rules in a file, and the keys that it has. Exits after the list of all faults."""
    from framegate.control.configuration.document import ConfigurationError
    from framegate.control.configuration.kafka_rules import read_kafka_rules

    try:
        return read_kafka_rules(file.read())
    except ConfigurationError as error:
        for fault in error.faults:
            print_note(fault.in_file(file.name))
        sys.exit(2)


def _print(found: "pb2.KafkaRules", output: str) -> None:
    if output == "json":
        print_json(as_dict(found))
        return
    import yaml

    rules = [{field.name: list(value) for field, value in rule.ListFields()} for rule in found.rules]
    for line in yaml.safe_dump({"report_only": found.report_only, "rules": rules}, sort_keys=False).splitlines():
        print_line(line)
