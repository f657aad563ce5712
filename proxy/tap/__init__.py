"""The tap: a record of the frames that passed, as segment files on local disk.

- ``record``: the format on disk and its constants; ``headers``: encode and decode the headers of segments and blocks.
- ``rules``: which frames are tapped, and how; ``selection``: rules that examine each frame; ``rule_use``: the cost of a rule, against its limits.
- ``frame_tap``: the interface for the relay; ``point``: its implementation for one rule.
- ``redaction``: ranges of bodies that are stored as zeros or as a hash; ``slicing``: ranges of a run.
- ``block_builder``: gathers chunks for one write; ``block``: a finished block; ``gap``: lost frames; ``tallies``: frames seen.
- ``segment``: the files: append, cut a torn tail, roll, seal.
- ``writer``: the log for the loop thread; ``writer_thread``: the queue of blocks and the thread that writes them.
- ``log_block``: a decoded block; ``log_reader``: streams and blocks for readers; ``log_segments``: finds and opens the files.
- ``pieces``: joins frames that were cut through.
- ``consumer``: registered readers, their offsets and how far each is behind.
- ``ledger``: the life of each stream; ``ledger_writer``: appends lines; ``expected``: what should exist according to it.
- ``completeness``: whether a log is complete; ``stream_totals``: the sums of a stream's blocks; ``acceptance``: findings that an operator accepted.
- ``retention``: deletes segments by size and age.
- ``recovery``: seals the files of an ended processor; ``sums``, ``settlement``: account for the frames that its stream lacks.
- ``trace_ids``: the ids of a segment's span.

Only ``log_reader`` re-exports, so that readers import one module. The pipeline may import the record, its headers, the log reader, the consumers, the
ledger and the stream totals.
"""
