"""One client joined to one upstream.

=========== =======================================================================
relay       what a selector tells, passed on; the hot path; all pairs of a processor
pair        the rules of a pair, from accept to its one closed row
state       the life of a pair, as a table
pairing     which answer belongs to which request, for ``protocol: kafka``
route       one listener and the upstream behind it: what its pairs share
drain       how all pairs end in good order
rows        a pair as a JSON object
watcher     the interface of who is told about pairs
counters    what is counted, and its way into the shared cells
=========== =======================================================================
"""
