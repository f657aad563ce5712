"""Metrics: the shared cells of the processors and what control counts, through one OpenTelemetry MeterProvider, to OTLP and Prometheus. Spans of what
control does and of what it is told, and the log's rows, to OTLP.

    environment   what is wanted: the configuration file and the OTEL_* variables, judged as a whole
    variables     the OTEL_* variables that are judged before the start
    provider      start and stop; the provider, its resource and its readers
    fold          cells of all processors and control's own values, at one moment, summed up
    instruments   observable instruments that read the fold
    histograms    the fold's histograms, put into what a reader collects (the SDK has no observable histogram)
    otlp          the reader that pushes to a collector; needs the extra ``otlp``
    exporters     OpenTelemetry's OTLP exporters, and the count of what they sent
    catalogue     the tables of metrics and variables in deploy/metrics.md
    account       what became of exports
    export        starts and stops spans and log records
    traces        makes spans; calls, event_spans, segment_spans: of what
    log_records   makes log records of rows
    room          how many spans or records may wait
    prometheus    the reader that answers scrapes; needs the extra ``prometheus``
    exposition    what a scrape gets; loaded by the first one
    names         what a metric is called in Prometheus
    process       CPU, memory, descriptors and age of our processes

Nothing is counted through the SDK per frame or per connection: a cell costs 0.05 µs, ``Counter.add`` 5 µs. This package loads nothing by itself:
``environment`` is asked even where nothing is exported, and then the SDK is not imported.
"""
