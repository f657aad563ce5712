"""A processor that speaks the link and echoes bytes, for tests of control. What it may be asked, and refuses, is what the real one is asked and
refuses: both run the suite ``tests/conformance/test_processor.py``. ``FAKE_PROCESSOR`` in the environment makes it misbehave, in the slot
behind an ``@`` or in all of them:

refuse          refuses every change
silent          answers no prepare
unconfirmed     answers no commit of a change whose max_receive_size is 13
broken          refuses each commit
fail            cannot start
stuck           its heartbeat stands
slow_start      is ready after 300 ms
down            leaves an endpoint out
partly          mutes, unmutes and closes all but one
busy            drains until its clients have gone
deaf            never answers mute, unmute, close and drain
dying           dies when a change is prepared
quitting        dies when a change is to be committed, before it has it
off             says that the rule "doubtful" has turned itself off, when it has it and bytes come
holding         says that each of its connections holds as many bytes as its number
leaving         dies when it is asked who holds memory
older, newer    says that it speaks another version of the link
unversioned     says no version of it
misspelt        says what holds memory in rows without ``kind``
losing          has no descriptor for a socket to a handler process until it was given three
"""

import argparse
import dataclasses
import ipaddress
import json
import os
import selectors
import socket
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from framegate.proxy.cells import CellLayout, CellWriter, State
from framegate.proxy.config.model import MAX_RECEIVE_SIZE, ProxyConfig, TapRule, changed_from_wire, from_wire, largest_whole
from framegate.proxy.network.connection_id import ConnectionIds, format_connection_id
from framegate.proxy.server.link import HANDLER_PROCESS, Handover, LinkReader, encode, receive_handovers
from framegate.proxy.server.messages import (
    AccessReply,
    BrokersSeenNotice,
    BulkCommand,
    BulkReply,
    Change,
    ClientsReply,
    DecidedReply,
    DescribeReply,
    DrainedNotice,
    DrainReply,
    ErrorReply,
    EvictReply,
    FailedMessage,
    HoldersReply,
    ListReply,
    PartedNotice,
    ReadyMessage,
    RefusedReply,
    RowsNotice,
    UpstreamsReply,
)
from framegate.proxy.server.pair_rows import is_due
from framegate.proxy.server.protocol import WIRE_VERSION, event_notice, read_command, read_start
from framegate.proxy.server.rows import (
    ChannelRow,
    ClientRow,
    EndpointRow,
    HandoverFailedRow,
    HolderRow,
    LostRow,
    OpenedRow,
    OpenRow,
    StoresRow,
    TapRuleOffRow,
    TrafficRow,
    listener_owner,
    upstream_owner,
)
from framegate.proxy.server.schema import schema_of


def numbers_of(row: StoresRow | None) -> dict[str, int]:
    return {} if row is None else {owner: store["number"] for owner, store in row["stores"].items()}


LOST = LostRow(bytes=0, request=0, response=0)


def channel_row(number: int, handover: Handover) -> ChannelRow:
    row = ChannelRow(
        id=number,
        listener=handover.listener,
        peer=handover.peer,
        upstream="u",
        endpoint="127.0.0.1:1",
        principal="ANONYMOUS",
        mechanism=None,
        tls=None,
        frames=TrafficRow(request=0, response=0),
        bytes=TrafficRow(request=0, response=0),
        opened_ns=handover.accepted_ns,
    )
    if handover.broker >= 0:
        row["broker"] = handover.broker
    return row


def layout_of(places: list[list[str]]) -> CellLayout:
    return CellLayout([tuple(place) for place in places])


def _owners(config: ProxyConfig) -> set[str]:
    own = {listener_owner(item.name) for item in config.listeners if item.tls is not None}
    return own | {upstream_owner(item.name) for item in config.upstreams if item.tls is not None}


def limits_of(config: ProxyConfig) -> Any:
    """All quotas of a configuration, as facts have them."""
    listeners = {item.name: dataclasses.asdict(item.limits) for item in config.listeners}
    return json.loads(json.dumps({"node": dataclasses.asdict(config.limits), "listeners": listeners}))


def facts_of(config: ProxyConfig) -> dict[str, Any]:
    """What tests ask about a configuration in force."""
    facts: dict[str, Any] = {"max_receive_size": {item.name: item.max_receive_size for item in config.listeners}, "limits": limits_of(config)}
    if rules := {item.name: dataclasses.asdict(item.kafka) for item in config.listeners if item.kafka is not None}:
        facts["kafka_rules"] = rules
    if config.tap is not None:
        facts["tap_rules"] = [dataclasses.asdict(rule) for rule in config.tap.rules]
    return facts


def _changed(before: ProxyConfig, row: dict[str, Any]) -> ProxyConfig:
    """The configuration with what a change has, read at once."""
    work = changed_from_wire(before, row)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class FakeProcessor:
    def __init__(self, slot: int, handover: socket.socket, commands: socket.socket, cells: int) -> None:
        mode, _, where = os.environ.get("FAKE_PROCESSOR", "").partition("@")
        self.mode = mode if where in ("", str(slot)) else ""
        self.slot = slot
        self.handover = handover
        self.commands = commands
        self.cells = cells
        self.reader = LinkReader()
        self.selector = selectors.DefaultSelector()
        self.draining = False
        self.connections: dict[int, tuple[socket.socket, int, Handover]] = {}
        self.facts: dict[str, Any] = {}
        self.first = ""
        self.reports_open = False
        self.handlers: dict[str, socket.socket] = {}  # by ``slot.generation`` of the handler process
        self.lost = 0
        self.prepared: tuple[int, dict[str, Any]] | None = None
        self.muted: set[int] = set()
        self.actions: dict[int, int] = {}
        self.writer: CellWriter | None = None
        self.ids: ConnectionIds | None = None
        self.selector.register(commands, selectors.EVENT_READ, self.read_commands)

    def send(self, message: Any) -> None:
        self.commands.sendall(encode(message))

    def run(self) -> None:
        while True:
            for key, _ in self.selector.select(0.05):
                plain = key.fileobj in (self.commands, self.handover, *self.handlers.values())
                if plain or key.fd in self.connections:
                    key.data(*(() if plain else (key.fd,)))
            if self.writer is not None and self.mode != "stuck":
                self.writer.heartbeat(time.monotonic_ns())

    def read_commands(self) -> None:
        data = self.commands.recv(65536)
        if not data:
            sys.exit(0)
        for message in self.reader.feed(data):
            if self.writer is None:
                self.start(message)
            elif message["type"] == "facts":  # only the fake is asked: what is in force
                self.send({"type": "facts", "id": message["id"], "facts": self.facts})
            elif message["type"] == "handlers":  # likewise: which handler processes it is joined with, and what was handed over first
                self.send({"type": "handlers", "id": message["id"], "handlers": list(self.handlers), "first": self.first})
            else:
                self.obey(message)

    def obey(self, message: dict[str, Any]) -> None:
        try:
            command: Any = read_command(message)
            getattr(self, f"on_{command['type']}")(command)
        except Exception as error:
            self.send(ErrorReply(type="error", id=message.get("id"), error=f"{type(error).__name__}: {error}"))

    def start(self, first: dict[str, Any]) -> None:
        try:
            message = read_start(first)
            if self.mode == "fail":
                raise RuntimeError("the fake was told to")
        except Exception as error:
            self.send(FailedMessage(type="failed", error=str(error)))
            sys.exit(1)
        if self.mode == "slow_start":
            time.sleep(0.3)
        self.reports_open = message.get("rows_at_open", False)
        config = from_wire(message["config"])
        self.config = config
        self.facts = {
            **facts_of(config),
            "share": message["share"],
            "endpoints": message["endpoints"],
            "brokers": message.get("brokers", {}),
            "stores": numbers_of(message.get("stores")),
            "standing": message.get("standing", []),
        }
        self.writer = CellWriter(self.cells, layout_of(message["cells"]) if "cells" in message else CellLayout.of(config))
        self.image = array("q", self.writer.start(os.getpid(), message["generation"], time.monotonic_ns()))
        self.publish()
        self.writer.state(State.SERVING)
        self.ids = ConnectionIds(self.slot, message["generation"])
        self.selector.register(self.handover, selectors.EVENT_READ, self.take)
        wire = {"older": WIRE_VERSION - 1, "newer": WIRE_VERSION + 1}.get(self.mode, WIRE_VERSION)
        ready: Any = ReadyMessage(type="ready", wire=wire, pid=os.getpid(), modules={"fake": __file__})
        if self.mode == "unversioned":
            del ready["wire"]
        self.send(ready)

    def publish(self) -> None:
        """Show in the cells what is in force, and the connections."""
        assert self.writer is not None
        self.cell("framegate.memory_pool.limit", "frames", value=self.facts["share"])
        for name, size in self.facts["max_receive_size"].items():
            self.cell("framegate.frame.size.limit", name, value=size)
            count = sum(item.listener == name for _, _, item in self.connections.values())
            self.cell("framegate.connection.active", "downstream", name, value=count)
        self.writer.publish(self.image)

    def cell(self, name: str, *values: str, value: int | None = None) -> None:
        """Set a cell, or count one more."""
        assert self.writer is not None
        index = self.writer.layout.index(name, *values)
        self.image[index] = self.image[index] + 1 if value is None else value

    def on_prepare(self, message: dict[str, Any]) -> None:
        if self.mode == "silent":
            return
        if self.mode == "dying":
            os._exit(9)
        if self.mode == "refuse":
            self.send(RefusedReply(type="refused", id=message["id"], reason="the fake was told to"))
            return
        refusal = self.judge(message["change"])
        if refusal:
            self.send(RefusedReply(type="refused", id=message["id"], reason=refusal))
            return
        self.prepared = message["id"], message["change"]
        self.send(DecidedReply(type="prepared", id=message["id"]))

    def judge(self, change: Change) -> str:
        """Why a change is refused; empty when it is not."""
        if self.prepared is not None:
            return f"change {self.prepared[0]} is prepared and not decided"
        unknown = set(change) - Change.__annotations__.keys()
        if unknown:
            return f"cannot change {', '.join(sorted(unknown))}"
        fault = schema_of(Change).fault(change)
        if fault:
            return f"a change that cannot be read: change{fault}"
        try:
            config = _changed(self.config, change.get("config", {}))
            fits = all(MAX_RECEIVE_SIZE.takes(item.max_receive_size) for item in config.listeners)
        except TypeError as error:
            return f"a configuration that cannot be: {error}"
        if not fits or ("cells" in change and {item.name for item in config.listeners} - {place[1] for place in change["cells"]}):
            return "a size that cannot be, or no cells"
        if max(largest_whole(config)) > change.get("share", self.facts["share"]):
            return "the share is below a max_receive_size"
        if set(change.get("endpoints", {})) - {item.name for item in config.upstreams}:
            return "no such upstream"
        if set(numbers_of(change.get("stores"))) - _owners(config):
            return "nobody has such a store"
        return "" if config.tap is None else self.judge_rules(config.tap.rules, {item.name for item in config.listeners})

    def judge_rules(self, rules: tuple[TapRule, ...], listeners: set[str]) -> str:
        try:
            for network in (network for rule in rules for network in rule.networks):
                ipaddress.ip_network(network, strict=False)
        except ValueError as error:
            return f"tap rules that cannot be: {error}"
        if len({rule.name for rule in rules}) != len(rules):
            return "two tap rules have one name"
        if {listener for rule in rules for listener in rule.listeners} - listeners:
            return "no such listener"
        return ""

    def on_commit(self, message: dict[str, Any]) -> None:
        if self.mode == "quitting":
            os._exit(9)
        if self.mode == "broken" or self.prepared is None or self.prepared[0] != message["id"]:
            self.send(RefusedReply(type="refused", id=message["id"], reason="that change is not prepared"))
            return
        change = self.prepared[1]
        self.prepared = None
        self.reports_open = change.get("rows_at_open", self.reports_open)
        self.config = _changed(self.config, change.get("config", {}))
        self.facts.update(facts_of(self.config))
        assert self.writer is not None
        if "cells" in change:
            layout = layout_of(change["cells"])
            moved = layout.moved(self.writer.layout)
            self.writer.follow(layout, self.writer.map(layout))
            self.image.extend([0] * (layout.count - len(self.image)))
            for start, end in moved:
                self.image[start:end] = array("q", [0] * (end - start))
        for key, value in change.items():
            if key in ("config", "cells", "tap_rule"):
                continue
            if key == "stores":
                self.facts[key] = {**self.facts[key], **numbers_of(value)}
            elif isinstance(value, dict):
                self.facts[key] = {**self.facts[key], **value}
            else:
                self.facts[key] = value
        self.publish()
        if self.mode != "unconfirmed" or 13 not in [item.max_receive_size for item in self.config.listeners]:
            self.send(DecidedReply(type="committed", id=message["id"]))

    def on_abort(self, message: dict[str, Any]) -> None:
        if self.prepared is not None and self.prepared[0] == message["id"]:
            self.prepared = None
        self.send(DecidedReply(type="aborted", id=message["id"]))

    def rows(self) -> list[OpenRow]:
        return [
            OpenRow(
                **{**channel_row(number, item), "opened_ns": 1},
                state="open",
                client_id="",
                software="",
                software_version="",
                muted=["admin"] if number in self.muted else [],
                muted_upstream=[],
                muted_ns=0,
                muted_upstream_ns=0,
                muting=False,
                mute_reason="",
                in_flight=0,
                oldest_ns=0,
                pending_send=0,
                leased=0,
                unsent=TrafficRow(request=0, response=0),
                limit_rule="",
                last_active_ns=1,
            )
            for _, number, item in self.connections.values()
        ]

    def on_list(self, message: dict[str, Any]) -> None:
        listener, limit = message.get("listener"), message.get("limit", 10_000)
        rows = [row for row in self.rows() if row["id"] > message.get("after", 0) and listener in (None, row["listener"])]
        page = rows[:limit]
        following = page[-1]["id"] if len(rows) > len(page) else 0
        self.send(ListReply(type="result", id=message["id"], rows=page, next=following))

    def on_describe(self, message: dict[str, Any]) -> None:
        row = next((row for row in self.rows() if row["id"] == message["connection"]), None)
        self.send(DescribeReply(type="result", id=message["id"], row=row))

    def named(self, message: BulkCommand) -> tuple[list[int], list[int], list[int]]:
        """Those that it happens to, those that are not here, and those that it does not happen to."""
        here = {number for _, number, _ in self.connections.values()}
        named = [number for number in here if self.actions.get(number) == message["lifts"]] if "lifts" in message else message["connections"]
        found, missing = [item for item in named if item in here], [item for item in named if item not in here]
        left_out = 1 if self.mode == "partly" else 0
        return found[left_out:], missing, found[:left_out]

    def act(self, message: dict[str, Any], action: Callable[[list[int]], None]) -> None:
        if self.mode == "deaf":
            return
        affected, missing, undone = self.named(message)
        action(affected)
        self.send(BulkReply(type="result", id=message["id"], affected=affected, missing=missing, undone=undone))

    def on_mute(self, message: dict[str, Any]) -> None:
        self.actions.update((number, message.get("action", 0)) for number in message["connections"])
        self.act(message, self.muted.update)

    def on_throttle(self, message: dict[str, Any]) -> None:
        self.act(message, lambda numbers: None)

    def on_unmute(self, message: dict[str, Any]) -> None:
        self.act(message, self.muted.difference_update)

    def on_close(self, message: dict[str, Any]) -> None:
        self.act(message, lambda numbers: self.close_all("admin", numbers))

    def on_evict(self, message: dict[str, Any]) -> None:
        """The oldest are the idlest."""
        if not 1 <= message["count"] <= 10_000:
            raise ValueError(f"{message['count']} pairs to be closed")
        if self.mode == "deaf":
            return
        idlest = sorted(number for _, number, item in self.connections.values() if item.listener != message["spared"])[: message["count"]]
        self.close_all("limit", idlest)
        self.send(EvictReply(type="result", id=message["id"], affected=idlest))

    def on_upstreams(self, message: dict[str, Any]) -> None:
        row = EndpointRow(
            upstream="u", endpoint="127.0.0.1:1", state="down", reason="refused", detail=f"says {self.slot}", since_ns=5, out=1,
            connections=2, weight=1, zone="", latency_ns=self.slot,
        )  # fmt: skip
        rows = [row] if self.mode == "down" else []
        if self.mode == "broker_down":  # the first address of each
            known = self.facts["brokers"]["u"]["brokers"]
            rows = [EndpointRow(**{**row, "broker": item["id"], "endpoint": "{2}:{3}".format(*item["addresses"][0])}) for item in known]
        self.send(UpstreamsReply(type="result", id=message["id"], rows=rows))

    def on_parts(self, message: dict[str, Any]) -> None:
        pass

    def on_clients(self, message: dict[str, Any]) -> None:
        """Each client has used its port number."""
        found = [item for _, _, item in self.connections.values()] if self.mode == "holding" else []
        parts = [(item.listener, *item.peer.rsplit(":", 1)) for item in found]
        rows = [ClientRow(measure="bytes", client=[name, port, "", host], amount=int(port)) for name, host, port in parts]
        totals = [ClientRow(measure="bytes", client=["a"], amount=sum(row["amount"] for row in rows))] if rows else []
        self.send(ClientsReply(type="result", id=message["id"], rows=rows, totals=totals))

    def on_holders(self, message: dict[str, Any]) -> None:
        if self.mode == "leaving":
            os._exit(9)
        if not 1 <= message["limit"] <= 100:
            raise ValueError(f"a limit of {message['limit']} holders")
        rows = [
            HolderRow(
                id=number,
                listener=item.listener,
                side="downstream",
                peer=item.peer,
                kind="begun",
                bytes=number & 0xFFFF,
                muted=["memory"],
                muted_ns=5,
                last_active_ns=3,
            )
            for _, number, item in (self.connections.values() if self.mode in ("holding", "misspelt") else ())
        ]
        rows.sort(key=lambda row: -row["bytes"])
        reply: Any = HoldersReply(type="result", id=message["id"], rows=rows[: message["limit"]])
        if self.mode == "misspelt":
            for row in reply["rows"]:
                row["sort"] = row.pop("kind")
        self.send(reply)

    def on_access(self, message: dict[str, Any]) -> None:
        if message["every_ms"] < 1 or message["limit"] < 1:
            raise ValueError("nothing that could be asked for")
        every_ns, since_ns, until_ns = message["every_ms"] * 1_000_000, message["since_ns"], message["until_ns"]
        due = [
            (number, item)
            for _, number, item in self.connections.values()
            if number > message["after"] and is_due(item.accepted_ns, number, every_ns, since_ns, until_ns)
        ]
        page = due[: message["limit"]]
        still = {"state": "open", "muted": [], "muted_upstream": [], "in_flight": 0, "last_active_ns": 1}
        lines = [self.line(number, item, **still, lost=LOST, mutes={}) for number, item in page]
        if lines:
            self.commands.sendall(encode(RowsNotice(type="access"), lines))
        self.send(AccessReply(type="result", id=message["id"], next=page[-1][0] if len(due) > len(page) else 0))

    def on_drain(self, message: dict[str, Any]) -> None:
        if self.mode == "deaf":
            return
        self.send(DrainReply(type="result", id=message["id"]))
        if "delay_ms" in message:  # a lead-in: its clients are of its own pod
            return
        if self.mode == "busy" and self.connections:
            self.draining = True
            return
        self.close_all("drained")
        self.send(DrainedNotice(type="drained", open=0, cut_off=0))

    def on_stop(self, message: dict[str, Any]) -> None:
        self.close_all("drained")
        sys.exit(0)

    def take(self) -> None:
        try:
            received = receive_handovers(self.handover)
        except EOFError:
            sys.exit(0)
        for handover, descriptor in received:
            self.take_over(handover, descriptor)

    def take_over(self, handover: Handover, descriptor: int) -> None:
        self.first = self.first or handover.listener
        if handover.listener == HANDLER_PROCESS:
            self.take_handler(handover, descriptor)
            return
        assert descriptor >= 0, "a hand-over brings its connection"
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        assert self.ids is not None
        number = int(self.ids.next())
        self.connections[descriptor] = (connection, number, handover)
        if self.reports_open:
            self.commands.sendall(encode(RowsNotice(type="opened"), [self.line(number, handover)]))
        self.cell("framegate.connection.accepted", handover.listener)
        self.publish()
        self.selector.register(connection, selectors.EVENT_READ, self.echo)

    def take_handler(self, handover: Handover, descriptor: int) -> None:
        if self.mode == "losing" and self.lost < 3:
            self.lost += 1
            os.close(descriptor)
            descriptor = -1
        if descriptor < 0:
            error = "no descriptor to be had"
            self.send(event_notice("handover_failed", HandoverFailedRow(error=f"handler process {handover.peer}: {error}")))
            self.send(PartedNotice(type="parted", pair=handover.accepted_ns, error=error))
            return
        handler = self.handlers[handover.peer] = socket.socket(fileno=descriptor)
        self.selector.register(handler, selectors.EVENT_READ, lambda: self.hear(handover))

    def hear(self, handover: Handover) -> None:
        """A handler process says hello, or is gone, or says what it cannot say."""
        from framegate.proxy.relay.handler_wire import HELLO, record_end  # here: most fakes do without

        handler, error = self.handlers[handover.peer], ""
        try:
            data = handler.recv(65536)
        except ConnectionError:
            data = b""
        position = 0
        while data and (end := record_end(data, position)) >= 0:
            if data[position + 4] != HELLO:
                error = f"a record of kind {data[position + 4]}"
            position = end
        if not data or error:
            self.selector.unregister(handler)
            self.handlers.pop(handover.peer).close()
            self.send(PartedNotice(type="parted", pair=handover.accepted_ns, error=error))

    def echo(self, descriptor: int) -> None:
        connection = self.connections[descriptor][0]
        try:
            data = connection.recv(65536)
        except ConnectionError:
            data = b""
        if data == b"die":
            os._exit(9)
        if data.startswith(b"seen "):  # this list of brokers, in an answer
            self.send(BrokersSeenNotice(type="brokers_seen", upstream="u", brokers=json.loads(data[5:])))
        if self.mode == "off" and any(rule["name"] == "doubtful" for rule in self.facts["tap_rules"]):
            self.mode = ""
            self.send(event_notice("tap_rule_off", TapRuleOffRow(rule="doubtful", cause="loss", percent=7.5 + self.slot, limit=1.0)))
        if data:
            connection.send(data)
        else:
            self.close(descriptor, "peer_closed")

    def close_all(self, cause: str, numbers: Sequence[int] | None = None) -> None:
        """Close the connections of these numbers; None: all."""
        for descriptor, (_, number, _) in list(self.connections.items()):
            if numbers is None or number in numbers:
                self.close(descriptor, cause)

    def close(self, descriptor: int, cause: str) -> None:
        connection, number, handover = self.connections.pop(descriptor)
        self.selector.unregister(connection)
        connection.close()
        side = "downstream" if cause == "peer_closed" else "internal"
        self.cell("framegate.connection.closed", handover.listener, cause, side)
        self.publish()
        end = {"cause": cause, "detail": "", "side": side, "state": "open", "closed_ns": handover.accepted_ns, "duration_ms": 0}
        line = self.line(number, handover, **end, lost=LOST, mutes={})
        self.commands.sendall(encode(RowsNotice(type="closed"), [line]))
        if self.draining and not self.connections:
            self.send(DrainedNotice(type="drained", open=0, cut_off=0))

    @staticmethod
    def line(number: int, handover: Handover, **fields: Any) -> str:
        """A row of a connection, with what it has besides."""
        row = OpenedRow(
            **channel_row(number, handover),
            handshake_ns=None,
            connect_ns=1000,
            connect_started_ns=handover.accepted_ns,
            attempts=1,
            attempt_started_ns=handover.accepted_ns,
            tcp_ns=0,
            tls_ns=0,
            login_ns=0,
        )
        return f"{handover.accepted_ns} {number} {json.dumps({**row, **fields, 'id': format_connection_id(number)}, separators=(',', ':'))}"


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--slot", "--handover-fd", "--command-fd", "--cells-fd"):
        parser.add_argument(name, type=int, required=True)
    arguments = parser.parse_args()
    handover = socket.socket(fileno=arguments.handover_fd)
    handover.setblocking(False)
    FakeProcessor(arguments.slot, handover, socket.socket(fileno=arguments.command_fd), arguments.cells_fd).run()


if __name__ == "__main__":
    main()
