"""Pairs: one client's channel joined to one upstream's channel, or to a handler.

================= ==========================================================================
relay             all pairs of a processor
pair, leg         a pair and its rules; the sink of one of its channels (the hot path)
state             the life of a pair, as a table
opening           rule 1: connect to an endpoint of the upstream
login, renewal    logins to the upstream, and their renewal
session           clients that authenticate again; ``session_leg``: their sink
forwarding        rules 2 and 3: runs that are inspected on their way
tapping           which legs are tapped
ending            rules 5 and 7: half-close, closing, the closed row
losses            frames that were received and not passed on
pairing           which response belongs to which request (``protocol: kafka``)
rewriting         what is replaced in front of a cluster, so that no client learns a broker's own address
prepared_answers  answers of framegate's own, in the order of the upstream's
cluster           the brokers of a cluster, and what clients are told about them
upstream          endpoints: which is tried next, which is left out
quotas            the rates of node, listeners and addresses, and which of them apply to a channel
bucket, throttle  one rate; the throttling of one channel
route             what the pairs of one listener share
drain             the orderly end of all pairs
retirement        the end of connections whose certificate was replaced
revocation        the end of sessions whose user or certificate is no longer valid
request_sampler   which requests have a span; ``request_spans``: what is noted of them
counters          counters, by block of cells; ``publisher`` copies them into the shared cells
client_use        what each client uses, in bounded memory (``frequent``)
================= ==========================================================================

For listeners with a handler:

================== =================================================================
handler_wire       the records between a processor and a handler process
handler_leg        the sink of a channel with handled frames
handled_pair       the state of such a pair
handling           from a received frame to its request to a handler
verdicts           from a handler's reply to what is sent
request_channel    which handler process serves a connection; waiting for one
handler_process    the socket to one handler process
deferred_replies   replies that wait in the handler process for memory
handled_connection the state of one connection in the request channel; counters
================== =================================================================
"""
