"""The control process: everything that is not the data path. Imports point down this list (``pyproject.toml`` holds it).

    cli            the command line
    serve          the main of ``framegate serve``: order of start-up and of the end
    demo           ``framegate demo``: everything on one machine, shown
    service        the gRPC API, and health
    telemetry      OpenTelemetry and Prometheus
    steering       what may be asked or changed, done over running processors: channels, limits, pool, tap rules, drain
    rotation       files that are replaced while framegate runs: noticed, judged, taken everywhere or nowhere
    tap            the tap's directory: lock, ledger, budget, the accounts of processors that ended
    fleet          the processors: start, watch, restart, change, reap; their command sockets
    intake         the listening sockets, and the names of upstreams
    uncaught       what nobody caught; ``signals``: those that end us, and SIGHUP
    guard          what works in the background, and what becomes of it
    meters         what the control process counts itself
    logs           JSON rows on stdout
    plane          the interface that service, telemetry and health use, and its values; ``steering`` implements it
    configuration  a YAML file becomes the model of ``proxy.config``; every fault at once
    gen            generated stubs
    events         one numbered order of what happens, and who subscribes to it
    errors         what is refused, and why; ``files``: reads files that may be replaced at any moment; ``web``: the HTTP server of scrapes and probes

It may import the data path (``proxy``); nothing there imports it.
"""
