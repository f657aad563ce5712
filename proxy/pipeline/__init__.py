"""The Spark side of the tap: the record as tables.

schema.py        the columns of a chunk row, and their projection through a user's schema
slices.py        reads slices of the log: mapped blocks, and losses
decode.py        blocks as Arrow record batches, without copying payload
position.py      the offsets of a query, as its checkpoint keeps them
planner.py       plans batches over all streams of a log
loss.py          losses of a log, and streams that are gone according to the tap's ledger
options.py       the options of the source
source.py        the Python Data Source ``framegate``, for streams and batches
pyspark_framegate.py the one module that a job imports, and that Spark finds by itself; the wheel installs it at its top
chunk_rows.py    Arrow to Arrow: chunks to frames, gaps and totals
derived.py       Arrow to Arrow: frames, gaps and totals to the other tables; partial_sums.py: sums by key
batch_task.py    what a task of the job does: files of frames, and what the driver needs; table_files.py: writes Parquet files
place.py         where the tables are: a folder or a URL
completeness.py  the table and the view of completeness, by minute
tables.py        the writer of micro-batches; read it first
columns.py       the columns of the tables, with types and descriptions
delta.py         the tables as Delta Lake tables: commits, compaction and expiry
views.py         reads the tables with Spark
session.py       the Spark session with the settings of this pipeline
memory.py        divides the job's heap
settings.py      the settings of the job; claims.py: its locks
run.py           the job behind ``framegate pipeline run``; report.py: the events that it prints
telemetry.py     spans and metrics of its batches, over OTLP; only loaded where they are wanted

Only this package imports pyspark, pyarrow and numpy. Of lower packages it imports the tap's record, log reader, ledger and consumers only. Nothing is
re-exported here, so that importing one module costs no more than that module needs.
"""
