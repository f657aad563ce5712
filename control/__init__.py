"""The control process: everything that is not the data path.

    serve          the main of ``framegate serve``: order of start-up and of the end
    configuration  a YAML file becomes the model of ``proxy.config``; every fault at once
    acceptor       the listening sockets, on a thread of its own
    supervisor     the processors: start, watch, restart, reap
    link           one processor's command socket, from this side
    resolver       names of upstream endpoints become addresses
    plane          the interface that service, telemetry and health use; ``steering`` implements it
    logs           JSON rows on stdout
    errors         what is refused, and why
    service, telemetry, cli, demo, gen   gRPC, OpenTelemetry and Prometheus, the command line, the demonstration, generated stubs

It may import the data path (``proxy``); nothing there imports it.
"""
