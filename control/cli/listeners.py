"""``framegate listeners``."""

from typing import Final

import click

from framegate.control.cli.options import admin_options, example

__all__ = ["listeners"]


_HEADINGS: Final = (
    "NAME", "ADDRESS", "PROTOCOL", "TLS", "UPSTREAM", "MAX RECEIVE SIZE", "REQUESTS", "ANSWERS", "OPEN", "AT MOST", "ACCEPTING", "HANDLER",
)  # fmt: skip


@click.group(epilog=example("framegate listeners list"))
def listeners() -> None:
    """Listeners: the addresses on which clients connect."""


@listeners.command("list", epilog=example("framegate listeners list --output json"))
@admin_options
def list_(address: str, output: str) -> None:
    """List the listeners.

    REQUESTS and ANSWERS say how frames are forwarded, OPEN counts open connections, AT MOST is their limit.
    """
    from framegate.control.cli.client import CALL_TIMEOUT_S, PAGE_SIZE, calling, pages
    from framegate.control.cli.output import as_dict, print_json, print_table, size_text, word
    from framegate.control.v1 import listener_service_pb2 as pb2
    from framegate.control.v1.listener_service_pb2_grpc import ListenerServiceStub

    def ask(token: str) -> pb2.ListListenersResponse:
        return stub.ListListeners(pb2.ListListenersRequest(page_size=PAGE_SIZE, page_token=token), timeout=CALL_TIMEOUT_S)

    with calling(address) as channel:
        stub = ListenerServiceStub(channel)
        found = [item for page in pages(ask) for item in page.listeners]
    if output == "json":
        print_json([as_dict(item) for item in found])
        return

    def forwarding(value: pb2.Forwarding.ValueType) -> str:
        return word(pb2.Forwarding.Name(value), "FORWARDING_")

    rows = [
        (
            item.name, item.address, word(pb2.Protocol.Name(item.protocol), "PROTOCOL_"), "yes" if item.tls_enabled else "no",
            item.upstream or "-",
            size_text(item.max_receive_size_bytes), forwarding(item.request_forwarding), forwarding(item.response_forwarding),
            item.open_connection_count, item.max_connection_count or "-", "yes" if item.accepting else "no", item.handler or "-",
        )
        for item in found
    ]  # fmt: skip
    print_table(_HEADINGS, rows)
