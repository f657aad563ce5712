"""Metrics of framegate's processes and calls of the admin API, named by OpenTelemetry's conventions where these have a name. Control counts them."""

from typing import Final

from framegate.proxy.cells.metric import RPC_BOUNDS, Kind, Metric
from framegate.proxy.cells.metrics import ERROR_TYPE

PROCESS: Final = "framegate.process"
MODE: Final = "cpu.mode"
GENERATION: Final = "cpython.gc.generation"
RPC_SYSTEM: Final = "rpc.system.name"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.response.status_code"  # Renamed ``rpc.status_code`` in the conventions after 1.44
_PROCESS: Final = (PROCESS, ())


def _standard(name: str, kind: Kind, unit: str, description: str, *attributes: tuple[str, tuple[str, ...]], bounds: tuple[float, ...] = ()) -> Metric:
    return Metric(name=name, kind=kind, unit=unit, description=description, attributes=attributes, bounds=bounds, source="control")


PROCESS_METRICS: Final = (
    _standard("process.cpu.time", "counter", "s", "CPU time used, by mode.", _PROCESS, (MODE, ("user", "system"))),
    _standard("process.memory.usage", "gauge", "By", "Resident memory.", _PROCESS),
    _standard("process.unix.file_descriptor.count", "gauge", "{file_descriptor}", "Open file descriptors.", _PROCESS),
    _standard("framegate.process.file_descriptor.limit", "gauge", "{file_descriptor}", "Most file descriptors that may be open.", _PROCESS),
    _standard(
        "framegate.process.run_delay", "counter", "s", "Time for which the main thread was ready and had no CPU, also when throttled.", _PROCESS
    ),
    _standard("process.uptime", "gauge", "s", "Time since the process started.", _PROCESS),
    _standard("cpython.gc.collections", "counter", "{collection}", "Garbage collections, by generation.", _PROCESS, (GENERATION, ("0", "1", "2"))),
)  # Read from the system at each collection, for the processes that run then
CALLS: Final = _standard(
    "rpc.server.call.duration",
    "histogram",
    "s",
    "Time of calls of the admin API.",
    (RPC_SYSTEM, ("grpc",)),
    (RPC_METHOD, ()),
    (RPC_STATUS, ()),
    (ERROR_TYPE, ()),
    bounds=RPC_BOUNDS,
)  # Counted by OpenTelemetry's SDK, which adds exemplars
