"""Kafka's network layer, without Kafka: frames over non-blocking sockets. Knows nothing of proxying.

================ ==========================================================================
framing, run     size headers in what a read gave; the whole frames it completed
receive, send    the one frame begun; the one run that the socket would not take whole
memory_pool      what may be retained, and who waits
transport        bytes over a socket: plaintext and tls look the same
authenticator    the interface: who is the peer, after the handshake
state, mute      the life of a channel, and why it is not read: two tables
channel          one connection: joins all of the above
selector, timer  all connections of a thread; the only place that waits
options, stats   what the channels of one side share: settings, counters
cause            why a connection ended: the closed list
connection_id    64-bit ids and their text form
================ ==========================================================================

Names are imported from their modules: ``from proxy.network.channel import Channel``.
"""
