"""The Spark side of the tap: what passed the proxy, as tables.

schema.py            the columns of a chunk row, and their projection through a user's schema
slices.py            slices of the log, read: mapped blocks, and what is lost
decode.py            blocks as Arrow record batches, without copying payload
position.py          where a query stands in a log, as its checkpoint keeps it
planner.py           positions over all streams of a log: what is there, what a batch may take, how it is cut into partitions
loss.py              what a log lacks that was to be read; vanished.py: which streams are gone, judged from the tap's ledger
options.py           the options of the source, judged
source.py            the Python Data Source ``framegate``, for streams and batches
pyspark_framegate.py the one module that a job imports, and what Spark finds by itself; the wheel installs it at its top
transforms.py        DataFrame to DataFrame: chunks to frames, gaps and totals
derived.py           Arrow to Arrow: frames, gaps and totals to the other tables; partial_sums.py: sums by key
completeness.py      the table and the view that say of each minute whether anything is missing
tables.py            which tables there are, and the writer of micro-batches; the page to begin with
layout.py            where the tables' Parquet files are, and how they get there and away again
manifest.py          which files are the tables: one small file, replaced or appended to in one piece
compaction.py        beside the stream: many small files become few, old ones go
delta.py             the same tables as Delta Lake tables, wherever Spark can write; writers.py: the writer of an output, by its format
views.py             reading the tables with Spark
session.py           the Spark session with the settings that this pipeline wants
memory.py            what the job's heap has room for
settings.py          what the job is told
run.py               the job behind ``framegate pipeline run``; report.py: the events it prints
telemetry.py         spans and metrics of its batches, over OTLP; only loaded where they are wanted
claims.py            what a job holds for itself; stopping.py: how it takes signals

Only this room imports pyspark, pyarrow and numpy; of the rooms below it knows the tap's record, log reader, ledger and consumers only. Nothing is
re-exported here, so that importing one module costs no more than that module needs.
"""
