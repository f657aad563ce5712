"""The Spark side of the tap: the record as tables.

schema.py            the columns of a chunk row, and their projection through a user's schema
slices.py            slices of the log, read: mapped blocks, and what is lost
decode.py            blocks as Arrow record batches, without copying payload
position.py          offsets of a query, as its checkpoint keeps them
planner.py           positions over all streams of a log: what is there, what a batch may take, how it is cut into partitions
loss.py              losses of a log; vanished.py: streams that are gone, by the tap's ledger
options.py           the options of the source, judged
source.py            the Python Data Source ``framegate``, for streams and batches
pyspark_framegate.py the one module that a job imports, and what Spark finds by itself; the wheel installs it at its top
transforms.py        DataFrame to DataFrame: chunks to frames, gaps and totals
derived.py           Arrow to Arrow: frames, gaps and totals to the other tables; partial_sums.py: sums by key
completeness.py      the table and the view of completeness, by minute
tables.py            which tables there are, and the writer of micro-batches; the page to begin with
layout.py            the tables' Parquet files: paths, publishing, deletion
manifest.py          which files are the tables: one small file, replaced or appended to atomically
compaction.py        compaction and expiry
delta.py             the same tables as Delta Lake tables, wherever Spark can write; writers.py: the writer of an output, by its format
views.py             reading the tables with Spark
session.py           the Spark session with the settings that this pipeline wants
memory.py            how the job's heap is divided
settings.py          the settings of the job
run.py               the job behind ``framegate pipeline run``; report.py: the events it prints
telemetry.py         spans and metrics of its batches, over OTLP; only loaded where they are wanted
claims.py            the locks of a job; stopping.py: its signals

Only this package imports pyspark, pyarrow and numpy. Of lower packages it imports the tap's record, log reader, ledger and consumers only. Nothing is
re-exported here, so that importing one module costs no more than that module needs.
"""
