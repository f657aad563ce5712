"""One client joined to one upstream.

=========== =======================================================================
relay       all pairs of a processor: connections taken over, rules that change
leg         what a channel tells, passed on to its pair; the hot path
pair        what a pair is, and its rules, from accept to its one closed row
state       the life of a pair, as a table
opening     rule 1: the client is READY, an endpoint of the upstream answers
passing     rules 2 and 3: runs that somebody looks into
tapping     whose frames are looked at, and what changes when the rules do
ending      rules 5 and 7: half-close, the last second, the row
losses      what was received and is not passed on
pairing     which answer belongs to which request, for ``protocol: kafka``
upstream    its endpoints: which is tried next, which is left out
limiting    which quotas hold for a pair, from READY to its end
quotas      the rates of the node, of listeners and of client addresses
bucket      one rate, and whose turn it is
throttle    who keeps a channel muted for ``throttle``; what a channel pays
route       one listener and the upstream behind it: what its pairs share
drain       how all pairs end in good order
watcher     the interface of who is told about pairs
counters    what is counted, by blocks of cells
publisher   their way into the shared cells
=========== =======================================================================
"""
