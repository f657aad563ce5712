"""The tap: a faithful record of the frames that passed, in a log of segments on local disk.

- ``record``: the format on disk, drawn; its constants and the row of a chunk.
- ``headers``: what segments and blocks say of themselves: encode and decode.
- ``rules``: which frames are tapped, and how; what a connection's tap is.
- ``frame_tap``: one direction of one connection as rules tap it; what the relay calls.
- ``point``: the same where one rule takes all of it.
- ``selection``: the same where rules look at each frame.
- ``request_facts``: API and client's name of requests, for rules that ask.
- ``rule_use``: what a rule loses and costs, against its limits.
- ``redaction``: ranges of bodies that are stored as zeros, or as a hash.
- ``slicing``: ranges of a run: its frames, what is kept of them.
- ``block_builder``: gathers chunks for one write; ``block``: what it gathered, and its bytes on disk.
- ``segment``: the files: append a block, cut a torn tail, seal.
- ``writer``: the processor's log as the loop thread sees it: the bound, gaps, totals; ``writer_thread``: the queue of blocks, and who writes them.
- ``log_block``: a block in words: frames and gaps.
- ``log_reader``: streams, segments and blocks for readers; ``log_segments``: finds and opens their files.
- ``pieces``: frames that were cut through, joined again for readers.
- ``consumer``: who reads, and where each stands.
- ``ledger``: which streams there were, and what became of each; ``ledger_line``: a line of it; ``ledger_writer``: control adds lines to it.
- ``completeness``: whether a log is complete; ``account``: what the blocks of a stream add up to, for that.
- ``retention``: what is deleted when.
- ``trace_ids``: the ids of a segment's span, which control and the Spark job make alike.
- ``recovery``: seal the files that a dead processor left.
- ``sums``, ``settlement``: what the stream of a processor that ended has, what it lacks, and how the log is told.

Only ``log_reader`` re-exports, so that readers import one module. The pipeline may import the record, its headers, the log reader, the consumers, the
ledger and the account.
"""
