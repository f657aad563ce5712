"""The tap's directory, as control keeps it: whatever of the log no processor can do, or is there to do any more.

    keeper          the thread for all of it: lock, ledger, budget, sweep, the accounts of processors that ended
    settlement      what the stream of a processor that ended lacks, written into the log
    reserve         room kept free, so that a full disk can still be told what it did not take
    segment_watch   which segments began and ended, for who makes spans of them
    directory_lock  one instance's lock, and whether an earlier one's processors still live

Nothing is re-exported; only who taps pays for the log's modules (``control.serve`` imports ``keeper`` late).
"""
