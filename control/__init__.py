"""The control process: everything that is not the data path. Imports point down this list (``pyproject.toml`` enforces it).

    cli            the command line
    kubernetes     the sidecar in manifests
    serve          the main of ``framegate serve``: start and stop in order
    demo           ``framegate demo``; ``doctor``: checks of a machine
    service        the gRPC API, and health
    telemetry      OpenTelemetry and Prometheus
    steering       the operations behind the API: channels, limits, pool, tap rules, drain
    tap            the tap's directory: lock, ledger, retention, settlement
    rotation       files that are replaced while framegate runs
    fleet          processors and handler processes: start, watch, restart, change, stop
    accept         listening sockets, connection quotas, name resolution
    uncaught       the last exception handlers; ``signals``: SIGTERM, SIGINT, SIGHUP; ``notify``: systemd
    task_monitor   watches background tasks
    meters         metrics of the control process; ``logs``: JSON rows on stdout
    plane          the control API as an interface, which ``steering`` implements
    configuration  from a YAML file to the model of ``framegate.proxy.config``
    gen            generated stubs
    identity       passwords, tokens and users
    events         one numbered sequence of events
    errors         errors of the API; ``files``: reads files that may be replaced; ``web``: the HTTP server of scrapes and probes

It may import ``proxy``; ``proxy`` does not import it.
"""
