"""Kafka's network layer, without Kafka: frames over non-blocking sockets. Knows nothing of proxying.

======================== =============================================================================
framing, run             where frames begin and end in what a read gave; the whole frames it completed
int32, fixed_header      framings with headers of one length; varint, lines: those without; framings: by name
translation              a run in the framing of the other side
receive, send            the one frame begun; the one run that the socket would not take whole
memory_pool, turns       what is held, and which large frame may go on while memory is short (``MEMORY.md``)
careful, socket_buffers  how a channel reads while it is short; what the kernel's buffers say
turnover                 who holds memory that others wait for must move
pipe                     bytes that pass from socket to socket without coming here
transport                bytes over a socket: plaintext and tls look the same
tls_bio, tls_record      OpenSSL's two ends, which all connections share; where TLS records end
tls_context              TLS contexts from files
distinguished_name       a certificate's subject as text; der: the form that certificates have
authenticator            the interface: who is the peer, after the handshake; and who needs no more than that
authentication           a channel while it waits for its authenticator; frame_exchange: the frames of that
state, mute              the life of a channel, and why it is not read: two tables (``state_table``)
mute_set                 why one channel is not read now, since when, how often
channel                  one connection: its life, its mutes, what it waits for
read_half, write_half    what it reads and writes with; channel_callbacks: what they ask of it
watchdog, verdict        what takes too long; from what went wrong to the one cause
selector, timer          all connections of a thread; the only place that waits
read_size                how much is asked for in one read
channel_sink             what a channel tells, and whom
fd_handler, epoll        who handles the events of a descriptor; their bits
event_loop               what channels need of the selector, and it of them
options, stats           what the channels of one side share: settings, counters
connection_id            64-bit ids and their text form
connection_socket        sockets of connections, of the plain type
======================== =============================================================================

Names are imported from their modules: ``from proxy.network.channel import Channel``.
"""
