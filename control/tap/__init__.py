"""The tap's directory, as the control process manages it.

    keeper          one thread: lock, ledger, retention, settlement
    settlement      writes what the stream of an ended processor lacks
    reserve         disk space kept free, so that losses on a full disk can be recorded
    segment_watch   which segments began and ended, for spans
    directory_lock  the lock of one instance

Nothing is re-exported; ``framegate.control.runtime`` imports ``keeper`` late, so that only users of the tap load it.
"""
