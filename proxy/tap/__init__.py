"""The tap: a faithful record of the frames that passed, in a log of segments on local disk.

- ``record``: the format on disk, drawn; constants, encode and decode.
- ``rules``: which connections are tapped, and how.
- ``point``: one direction of one connection as a rule taps it; what the relay calls.
- ``slicing``: ranges of a run: its frames, what is kept of them.
- ``block``: chunks gathered for one write.
- ``segment``: the files: append a block, cut a torn tail, seal.
- ``writer``: the processor's log: blocks, the bounded queue, the writer thread, counters.
- ``log_block``: a block in words: frames and gaps.
- ``log_reader``: streams, segments, blocks and frames for readers.
- ``pieces``: frames that were cut through, joined again for readers.
- ``consumer``: who reads, and where each stands.
- ``ledger``: which streams there were, and what became of each.
- ``retention``: what is deleted when.
- ``recovery``: what a dead processor left: seal its files, record its gap.

Nothing is re-exported: the pipeline may import the record, the log reader, the consumers and the ledger.
"""
