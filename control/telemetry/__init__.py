"""Telemetry: metrics (the processors' shared cells and the control process's own counts) over OTLP and for Prometheus; spans and log records over
OTLP.

    environment   what to export: the configuration file and the OTEL_* variables, checked together
    provider      metrics: start and stop of what reads them, and what identifies framegate
    export        spans and log records: start and stop
    fold          the cells of all processors and the control process's values at one moment, summed up
    instruments   observable instruments over the fold and /proc
    watched       the same values for the watch for problems (``steering.problems``), also without OpenTelemetry
    otlp_reader   pushes to a collector; adds the fold's histograms (the SDK has no observable histogram)
    scraping      collects for scrapes, without the SDK
    exporters     OpenTelemetry's OTLP exporters, what waits for them, and the count of what they sent
    traces        spans, of calls and of the tap's segments; event_spans: of events
    log_records   log records of rows
    exposition    the answer to a scrape; loaded by the first one
    catalogue     all metrics, and their names in Prometheus

Nothing is counted through the SDK per frame or per connection: a cell costs 0.05 µs, ``Counter.add`` 5 µs. This package imports none of its modules:
``environment`` is loaded even if nothing is exported, and then the SDK is not.
"""
