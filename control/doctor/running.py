"""The framegate that runs here, if its control plane answers: its state, and whether it runs with the file and the version of this program."""

import dataclasses
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from framegate.control.configuration.difference import differences
from framegate.control.configuration.load import judge
from framegate.control.configuration.reading import parse_document
from framegate.control.configuration.units import counted
from framegate.control.doctor.finding import Deadline, Figure, Finding, judged, unknown
from framegate.control.doctor.surroundings import Surroundings
from framegate.control.v1 import configuration_service_pb2, pool_service_pb2, proxy_service_pb2, upstream_service_pb2
from framegate.control.v1.configuration_service_pb2_grpc import ConfigurationServiceStub
from framegate.control.v1.pool_service_pb2_grpc import PoolServiceStub
from framegate.control.v1.proxy_service_pb2_grpc import ProxyServiceStub
from framegate.control.v1.upstream_service_pb2_grpc import UpstreamServiceStub
from framegate.proxy.config.model import ProxyConfig

if TYPE_CHECKING:
    from framegate.control.v1.configuration_service_pb2 import Configuration
    from framegate.control.v1.pool_service_pb2 import ProcessorPool
    from framegate.control.v1.proxy_service_pb2 import Proxy

_PAGE: Final = 1000
_SHOWN: Final = 10  # Differences that are named
_STEP_S: Final = 10.0  # Two clocks may differ by so much: a start takes less than a second, on a busy machine several
_judged = functools.partial(judged, "running")
_PROGRAMS: Final = (b"framegate", b"framegate.control.cli", b"framegate.control.serve")


class Running:
    """Asks the control plane at ``address``. ``why``: says why there is no answer from an address. ``version``: of this program; empty: not known.
    ``answered``: whether there was an answer. ``pid``: of its process, if it can be seen from here. ``identified``: set when ``pid`` is final.
    """

    def __init__(self, around: Surroundings, address: str, why: Callable[[str], str], version: str) -> None:
        self.answered = False
        self.pid: int | None = None
        self.identified: Final = threading.Event()
        self._around: Final = around
        self._address: Final = address
        self._why: Final = why
        self._version: Final = version

    def look(self) -> Iterator[Finding]:
        deadline = Deadline(self._around.timeout_s)
        try:
            with grpc.insecure_channel(self._address) as channel:
                proxy = ProxyServiceStub(channel).GetProxy(proxy_service_pb2.GetProxyRequest(), timeout=deadline.left()).proxy
                self.answered = True
                self.pid = proxy.pid if self._is_seen(proxy.pid) else None
                self.identified.set()
                pools = PoolServiceStub(channel)
                processors = pools.GetProcessorPool(pool_service_pb2.GetProcessorPoolRequest(), timeout=deadline.left()).processor_pool
                view = configuration_service_pb2.GetConfigurationRequest.VIEW_IN_FORCE
                asked = configuration_service_pb2.GetConfigurationRequest(view=view)
                in_force = ConfigurationServiceStub(channel).GetConfiguration(asked, timeout=deadline.left()).configuration
                listed = upstream_service_pb2.ListUpstreamsRequest(page_size=_PAGE)
                upstreams = UpstreamServiceStub(channel).ListUpstreams(listed, timeout=deadline.left())
        except grpc.RpcError as error:
            self.identified.set()
            yield self._unanswered(error)
            return
        yield from self._state(proxy, processors)
        yield self._program(proxy)
        yield from self._clock(proxy)
        for item in upstreams.upstreams:
            for down in item.down_endpoints:
                reason = upstream_service_pb2.Endpoint.Reason.Name(down.reason).removeprefix("REASON_").lower()
                advice = "see what is said of this upstream below; framegate tries it again by itself"
                yield _judged(f"upstream {item.name}, {down.address}", f"is left out: {reason} {down.detail}".strip(), warning=advice)
        if self._around.config is not None:
            yield self._same(self._around.config, in_force, proxy.config_revision)

    def _unanswered(self, error: Any) -> Finding:
        code, there = error.code(), f"what listens at {self._address} did not answer"
        if code == grpc.StatusCode.UNAVAILABLE and not self.answered:
            words = f"no framegate answers at {self._address}: {self._why(self._address)}"
            return unknown("running", "control plane", words, "start it, or name its socket: --address unix:PATH")
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            advice = "look at its rows and its processor time; the liveness probe restarts one that hangs"
            return _judged("control plane", f"{there} within {self._around.timeout_s:g} s", fault=advice)
        advice = "look whether it is a framegate of this version, and not its health listener"
        return _judged("control plane", f"{there}: {error.details()} ({code.name})", fault=advice)

    def _is_seen(self, pid: int) -> bool:
        """Whether the process with this number here is this framegate: in another container it is not."""
        try:
            line = (self._around.root / f"proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return any(program in line for program in _PROGRAMS) and b"serve" in line

    def _state(self, proxy: "Proxy", processors: "ProcessorPool") -> Iterator[Finding]:
        state = type(proxy).State.Name(proxy.state).removeprefix("STATE_").lower()
        up = sum(item.state == type(item).STATE_RUNNING for item in processors.processors)
        figures = {"open_connections": proxy.open_connection_count, "processors": processors.processor_count, "running": up}
        words = f"is {state}, with {counted(proxy.open_connection_count, 'open connection')} and {up} of {processors.processor_count} processors"
        subject = f"framegate {proxy.node}"
        if state != "serving":
            yield _judged(subject, words, figures, warning="it takes no connections now: its rows say why (framegate status)")
        else:
            advice = "look at its rows of processors that died; it starts others by itself" if up < processors.processor_count else None
            yield _judged(subject, words, figures, warning=advice if up else None, fault=None if up else advice)
        for warning in proxy.warnings:
            yield _judged(subject, warning, warning="see what is said of it below, and `framegate status`")

    def _program(self, proxy: "Proxy") -> Finding:
        figures: dict[str, Figure] = {"version": proxy.version, "own_version": self._version, "compiled": int(proxy.compiled)}
        if self._version and proxy.version != self._version:
            words = f"runs the version {proxy.version}, and this program is {self._version}"
            return _judged("version", words, figures, warning="restart it, or take the program that it was started with")
        advice = "install the wheel that was built with a C compiler; the data path is several times slower without"
        words = "compiled, as this program" if proxy.compiled else "as plain Python"
        return _judged("version", f"{proxy.version}, {words}", figures, warning=None if proxy.compiled else advice)

    def _clock(self, proxy: "Proxy") -> Iterator[Finding]:
        """Compare the start time that it reports with the one by the kernel's clock that is never set."""
        if self.pid is None:
            return
        try:
            fields = (self._around.root / f"proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        by = (self._around.now() - age_s) - proxy.start_time.ToNanoseconds() / 1e9
        steady = abs(by) < _STEP_S
        words = "it was not set" if steady else f"it was set by {by:+.1f} s"
        advice = "find out what sets it; framegate's times of waiting do not depend on it, stamps of rows and of the tap, and certificates, do"
        yield judged("clock", "since the start of framegate", words, {"step_s": round(by, 3)}, warning=None if steady else advice)

    def _same(self, config: ProxyConfig, in_force: "Configuration", revision: int) -> Finding:
        theirs = judge(parse_document(in_force.text, Path(in_force.file).parent), machine=False).model
        subject = "configuration in force"
        if theirs is None:
            return unknown("running", subject, "this program cannot read it", "take the program that framegate was started with")
        differ = differences(dataclasses.replace(config, zone=config.zone or theirs.zone), theirs)
        figures = {"revision": revision, "differences": len(differ)}
        if not differ:
            return _judged(subject, "is the file's", figures)
        shown = [f"{item.path} is {force or 'absent'}, in the file {file or 'absent'}" for item in differ[:_SHOWN] for file, force in [item.texts]]
        rest = f"; and {len(differ) - _SHOWN} more" if len(differ) > _SHOWN else ""
        changed = f"; it was changed {revision - 1} times over the API" if revision > 1 else ""
        advice = "see `framegate config diff FILE`; `framegate config apply FILE` puts it in force, `framegate config save` keeps what is"
        return _judged(subject, f"differs from the file: {'; '.join(shown)}{rest}{changed}", figures, warning=advice)
