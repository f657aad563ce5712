"""Active checks: every endpoint of an upstream with ``check`` is connected to, again and again, and one that fails is left out in every processor.

Theory of operation. Control checks for all processors, over connections of its own. Each endpoint has a check of its own in each interval; at most
``AT_ONCE`` run at the same time, and each ends in time, so an endpoint that hangs delays no other. After ``fall`` failures in a row an endpoint
fails, after ``rise`` successes it passes again; one that is new passes. What has changed is given to the processors as one change. They use an
endpoint that fails only if all do.

A check that failed later than its timeout says nothing: control itself was stopped, or had no CPU time.
"""

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from framegate.control.accept.broker_connection import Tls, TlsOf, Wire, connected, own_header, tls_of
from framegate.control.accept.resolver import text_of
from framegate.control.errors import ControlError
from framegate.control.fleet.desired_state import DesiredState
from framegate.control.fleet.supervisor import Supervisor
from framegate.control.logs import RowLog
from framegate.control.task_monitor import TaskMonitor
from framegate.proxy.config.model import CheckConfig, ProxyConfig, UpstreamConfig
from framegate.proxy.errors import ProxyError
from framegate.proxy.server.messages import Change
from framegate.proxy.server.rows import Store, upstream_owner

AT_ONCE: Final = 256  # that many endpoints may hang, for each timeout within an interval, before they delay others
SLACK_S: Final = 0.25
PUBLISH_S: Final = 0.1
LIMIT_S: Final = 60.0  # without a heartbeat, beside the interval; see ``TaskMonitor.job``
Probe = Callable[[Wire], Awaitable[None]]


def probe_of(upstream: UpstreamConfig, check: CheckConfig, tls: TlsOf) -> Probe:
    """One check of an address; raises OSError, EOFError or ProxyError if it fails. The caller limits the time."""
    header = own_header(upstream)

    async def probe(address: Wire) -> None:
        async with connected(address, _plain if check.kind == "connect" else tls, header):
            pass

    async def probe_kafka(address: Wire) -> None:
        async with connected(address, tls, header) as made:
            answer_in(await made.ask(question()), 0)

    if check.kind != "kafka":
        return probe
    from framegate.control.accept.api_versions import answer_in, question  # with what authentication needs, 1 MiB

    return probe_kafka


def _plain(host: str) -> Tls | None:
    del host
    return None


def _kept(upstream: UpstreamConfig, stores: Callable[[], Mapping[str, Store]]) -> TlsOf:
    """As ``tls_of``; a context is made once for each store, since to read the system's authorities takes tens of milliseconds."""
    if upstream.tls is None:
        return _plain
    make, known = tls_of(upstream, stores), dict[str, tuple[Store, Tls | None]]()

    def tls(host: str) -> Tls | None:
        store = stores()[upstream_owner(upstream.name)]
        if host not in known or known[host][0] is not store:
            known[host] = store, make(host)
        return known[host][1]

    return tls


@dataclasses.dataclass(slots=True)
class _Target:
    """One address. ``passed``, ``failed``: results in a row; ``why``: it fails, and why."""

    address: Wire
    passed: int = 0
    failed: int = 0
    why: str = ""
    task: "asyncio.Task[None] | None" = None


class Checks:
    """The checks of all upstreams. Event loop only."""

    def __init__(
        self, supervisor: Supervisor, log: RowLog, task_monitor: TaskMonitor, probe: Callable[[UpstreamConfig, CheckConfig, TlsOf], Probe] = probe_of
    ) -> None:
        self._supervisor: Final = supervisor
        self._log: Final = log
        self._task_monitor: Final = task_monitor
        self._slots: Final = asyncio.Semaphore(AT_ONCE)
        self._probe: Final = probe
        self._targets: Final[dict[str, dict[str, _Target]]] = {}
        self._changed = False
        self._rounds: Final[dict[str, tuple[UpstreamConfig, asyncio.Task[None]]]] = {}
        self._publisher: asyncio.Task[None] | None = None
        self.follow(supervisor.desired.config)

    def follow(self, config: ProxyConfig) -> None:
        """Check the upstreams of a configuration. What is known of endpoints stays; an upstream without checks has none that fail."""
        wanted = {item.name: item for item in config.upstreams}
        for name in [name for name, (item, _) in self._rounds.items() if wanted.get(name) != item]:
            self._rounds.pop(name)[1].cancel()
            if name not in wanted or wanted[name].check is None:
                targets = self._targets[name]
                self._end(targets)
                targets.clear()
                self._changed = True
        for name in self._targets.keys() - wanted.keys():
            del self._targets[name]
        for item in config.upstreams:
            if (check := item.check) is not None and item.name not in self._rounds:
                made = self._probe(item, check, _kept(item, lambda: self._supervisor.desired.stores))
                self._targets.setdefault(item.name, {})
                every_s = check.every_ms / 1000
                task = self._task_monitor.repeat("checks", self._round(item.name, check, made), every_s, LIMIT_S + every_s)
                self._rounds[item.name] = item, task
        if self._targets and self._publisher is None:
            self._publisher = self._task_monitor.repeat("checks", self._publish, PUBLISH_S, LIMIT_S)

    def _end(self, targets: Mapping[str, _Target]) -> None:
        for target in targets.values():
            if target.task is not None:
                target.task.cancel()

    def close(self) -> None:
        for targets in self._targets.values():
            self._end(targets)
        for task in (self._publisher, *(task for _, task in self._rounds.values())):
            if task is not None:
                task.cancel()

    def _round(self, name: str, check: CheckConfig, probe: Probe) -> Callable[[], None]:
        def begin() -> None:
            targets = self._targets[name]
            now = {text_of(address): address for address in self._supervisor.desired.addresses(name)}
            for text in targets.keys() - now.keys():
                gone = targets.pop(text)
                if gone.task is not None:
                    gone.task.cancel()
                self._changed |= bool(gone.why)
            for number, (text, address) in enumerate(now.items()):
                target = targets.setdefault(text, _Target(address))
                target.address = address
                if target.task is None or target.task.done():
                    target.task = asyncio.create_task(self._check(name, target, check, probe, check.every_ms / 1000 * number / len(now)))

        return begin

    async def _check(self, name: str, target: _Target, check: CheckConfig, probe: Probe, after_s: float) -> None:
        await asyncio.sleep(after_s)
        async with self._slots:
            loop, timeout_s = asyncio.get_running_loop(), check.timeout_ms / 1000
            began_s, error = loop.time(), ""
            try:
                async with asyncio.timeout(timeout_s):
                    await probe(target.address)
            except TimeoutError as failure:
                error = str(failure) or f"no answer within {timeout_s:g} s"
            except (OSError, EOFError, ProxyError) as failure:
                error = _said(failure)
            except Exception as failure:  # ours, and nothing of the endpoint
                self._task_monitor.failed("checks", failure)
                return
            if not error or loop.time() - began_s <= timeout_s + SLACK_S:
                self._take(name, target, check, error)

    def _take(self, name: str, target: _Target, check: CheckConfig, error: str) -> None:
        target.passed, target.failed = (0, target.failed + 1) if error else (target.passed + 1, 0)
        if target.failed >= check.fall and not target.why:
            target.why = error
            self._log.write("check_failed", level="warning", upstream=name, endpoint=text_of(target.address), check=check.kind, error=error)
        elif target.passed >= check.rise and target.why:
            target.why = ""
            self._log.write("check_passed", upstream=name, endpoint=text_of(target.address), check=check.kind)
        else:
            return
        self._changed = True

    async def _publish(self) -> None:
        """Give what has changed to the processors. A refusal is logged and tried again a second later."""
        if not self._changed:
            return
        self._changed = False
        failing: dict[str, dict[str, str]] = {}

        def check() -> None:
            names = {item.name for item in self._supervisor.desired.config.upstreams} & self._targets.keys()
            failing.update({name: {text: each.why for text, each in self._targets[name].items() if each.why} for name in names})

        def commit(desired: DesiredState) -> None:
            desired.failing = failing

        try:
            await self._supervisor.change(lambda slot: Change(failing=failing), commit, check)
        except ControlError as error:
            self._log.write("endpoints_refused", level="error", error=str(error))
            self._changed = True
            await asyncio.sleep(1)


def _said(failure: Exception) -> str:
    """An error in words; those of the system, which asyncio replaces. OpenSSL's errors have a ``reason``, and another number."""
    if isinstance(failure, OSError) and failure.errno and not hasattr(failure, "reason"):
        return os.strerror(failure.errno)
    return str(failure) or type(failure).__name__
