"""The upstreams as they are, and their addresses: what the resolver found goes to every processor, what processors leave out comes from them."""

import asyncio
import dataclasses
from typing import Any

from framegate.control.accept.resolver import Resolver
from framegate.control.errors import ControlError
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.processor import REQUEST_MS
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.status import DownEndpoint, UpstreamStatus
from framegate.proxy.server.messages import Change, Endpoints
from framegate.proxy.server.protocol import upstreams_request

__all__ = ["Upstreams"]


class Upstreams:
    """Shows them, and changes their addresses."""

    def __init__(self, supervisor: Supervisor, resolver: Resolver, log: RowLog) -> None:
        self._supervisor = supervisor
        self._resolver = resolver
        self._log = log

    async def statuses(self) -> list[UpstreamStatus]:
        """Every upstream, in the configuration's order. Raises UnavailableError: a processor does not answer."""
        down = await self._down_endpoints()
        return [
            UpstreamStatus(
                name=item.name,
                endpoints=item.endpoints,
                addresses=self._resolver.current[item.name].texts(),
                tls=item.tls is not None,
                max_receive_size=item.max_receive_size,
                error=self._resolver.current[item.name].error,
                down=down.get(item.name, ()),
            )
            for item in self._supervisor.desired.config.upstreams
        ]

    async def _down_endpoints(self) -> dict[str, tuple[DownEndpoint, ...]]:
        """What the processors leave out, by upstream; of an address that several do, as the first of them says."""
        answers = await asyncio.gather(*(processor.request(upstreams_request(), REQUEST_MS) for processor in self._supervisor.running))
        found: dict[str, dict[str, DownEndpoint]] = {}
        for answer in answers:
            for (upstream, address), row in {(row["upstream"], row["endpoint"]): row for row in answer["rows"]}.items():
                each = found.setdefault(upstream, {})
                known = each.get(address) or DownEndpoint(address=address, reason=row["reason"], detail=row["detail"], processors=0)
                each[address] = dataclasses.replace(known, processors=known.processors + 1)
        return {name: tuple(each.values()) for name, each in found.items()}

    async def set_endpoints(self) -> None:
        """Give the resolver's addresses to every processor, unless they have them; logged, not raised, when one refuses: the next round tries
        again.
        """
        current = self._resolver.current
        endpoints = {name: resolution.addresses for name, resolution in current.items()}
        if _as_sets(endpoints) == _as_sets(self._supervisor.desired.endpoints):
            return

        def commit(desired: DesiredState) -> None:
            desired.endpoints = endpoints

        try:
            await self._supervisor.change(lambda slot: Change(endpoints=endpoints), commit)
            self._log.write("endpoints_changed", upstreams={name: resolution.texts() for name, resolution in current.items()})
        except ControlError as error:
            self._log.write("endpoints_refused", level="error", error=str(error))


def _as_sets(endpoints: Endpoints) -> dict[str, set[tuple[Any, ...]]]:
    """Name servers rotate their answers; an order that differs is no change."""
    return {name: {tuple(item) for item in rows} for name, rows in endpoints.items()}
