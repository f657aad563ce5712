"""What is stated a second time, in the API's comments and the command line's options, which load no model, is what the model states."""

import re
import typing
from pathlib import Path

import click

from framegate.control.bounds import MAX_HOLDERS, MAX_PAGE_SIZE
from framegate.control.cli import pools
from framegate.control.cli.options import DEFAULT_ADDRESS
from framegate.control.cli.taps import add, set_
from framegate.control.fleet.handler_process import KIND as HANDLER
from framegate.control.service.taps import RULE as RESOURCE
from framegate.control.v1 import certificate_service_pb2, handler_service_pb2, tap_service_pb2, upstream_service_pb2, user_service_pb2
from framegate.proxy.auth.scram import HASHES
from framegate.proxy.cells import EJECTION_REASONS, FILE_KINDS
from framegate.proxy.config.key import Key, field_types, keys
from framegate.proxy.config.limits import MAX_RECEIVE_SIZE
from framegate.proxy.config.model import MAX_PROCESSORS, AdminConfig, TapRule
from tests.fakes.cases import each_of

PROTOS = Path(__file__).resolve().parents[1] / "proto" / "framegate" / "control" / "v1"
RULE = keys(TapRule)
FIELDS = {name: field for name, field in RESOURCE.fields.items() if name != "ttl"}
RANGED = sorted(name for name, field in FIELDS.items() if RULE[field].range is not None)
OUTPUT_ONLY = {"etag", "state", "stops"}


def comments(service: str, field: str, count: int = 1) -> list[str]:
    """What stands above each field of that name, of which a .proto file has so many."""
    found: list[str] = re.findall(rf"((?:^ *//.*\n)+)^ *(?:optional |repeated )?[\w.]+ {field} = \d+;", (PROTOS / service).read_text(), re.MULTILINE)
    assert len(found) == count, field
    return [" ".join(line.strip().removeprefix("//") for line in each.splitlines()) for each in found]


def stated(key: Key) -> str:
    return f"{int(key.least)} to {int(key.most)}"


@each_of("name", RANGED)
def test_the_api_states_the_range_of_a_rules_field(name: str) -> None:
    assert f"; {stated(RULE[FIELDS[name]])}." in comments("tap_service.proto", name)[0]


def test_the_api_states_the_other_ranges() -> None:
    assert all(f"; {stated(MAX_RECEIVE_SIZE)}." in each for each in comments("limit_service.proto", "max_receive_size_bytes", 2))
    assert f"; 0 to {MAX_HOLDERS}." in comments("pool_service.proto", "holder_count")[0]
    assert f"; 1 to {MAX_PROCESSORS}." in (PROTOS / "pool_service.proto").read_text()
    for path in PROTOS.glob("*.proto"):
        for number in re.findall(r"The largest number .*?to return; 1 to ([\d,]+)\.", path.read_text()):
            assert int(number.replace(",", "")) == MAX_PAGE_SIZE, path.name


def test_the_enums_of_the_api_have_every_word_there_is() -> None:
    for enum, words in (
        (certificate_service_pb2.Reload.Kind, FILE_KINDS),
        (upstream_service_pb2.Endpoint.Reason, EJECTION_REASONS),
        (handler_service_pb2.HandlerProcess.EndReason, ("died", "stopped", *HANDLER.reasons)),
        (user_service_pb2.ScramMechanism, HASHES),
    ):
        names = [name.lower() for name in enum.keys()[1:]]
        assert all(any(name.endswith(word.lower().removeprefix("scram-").replace("-", "_")) for name in names) for word in words), words
        assert len(names) == len(words)


def test_a_rule_of_the_api_has_every_field_of_the_model_and_the_options_of_a_rule_have_every_one() -> None:
    assert {*FIELDS, "name", "ttl"} | OUTPUT_ONLY == {field.name for field in tap_service_pb2.TapRule.DESCRIPTOR.fields}
    for command in (add, set_):
        names = {parameter.name for parameter in command.params}
        assert {"expires" if name == "expire_time" else name for name in FIELDS} <= names


@each_of("option", [item for item in add.params if item.name in FIELDS])
def test_an_option_of_a_rule_takes_what_its_field_takes(option: click.Parameter) -> None:
    assert option.name is not None
    field = FIELDS[option.name]
    kind = field_types(TapRule)[field]
    literal = next((part for part in (kind, *typing.get_args(kind)) if typing.get_origin(part) is typing.Literal), None)
    if literal is not None:
        assert isinstance(option.type, click.Choice)
        assert tuple(option.type.choices) == typing.get_args(literal)
    if kind is float:
        assert isinstance(option.type, click.FloatRange)
        assert (option.type.min, option.type.max) == RULE[field].range


def test_the_options_of_the_pool_take_what_the_plane_takes() -> None:
    types = {item.name: item.type for command in (pools.get, pools.set_) for item in command.params}
    processors, top = types["processors"], types["top"]
    assert isinstance(processors, click.IntRange)
    assert isinstance(top, click.IntRange)
    assert (processors.min, processors.max, top.min, top.max) == (1, MAX_PROCESSORS, 0, MAX_HOLDERS)


def test_the_command_line_asks_where_framegate_listens_by_default() -> None:
    assert AdminConfig().address == DEFAULT_ADDRESS
