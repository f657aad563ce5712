"""Frames over non-blocking sockets, after Kafka's network layer. This package knows nothing of proxying.

======================================= ================================================================================
framing, run                            how a stream of bytes is cut into frames; the whole frames of one read
int32, fixed_header, varint, lines      the framings; ``framings`` finds one by its name
translation                             a run in another framing
receive, send                           the frame that is being read; the run that the socket did not take whole
memory_pool, admission_slots            the budget of bytes; which large frame is read while memory is short (``MEMORY.md``)
low_memory_reader, socket_buffers       reading while memory is short; what the kernel's socket buffers hold
stall_evictor                           closes channels that hold memory and move too little
pipe                                    ``splice`` from socket to socket
transport, plaintext, tls               bytes over one socket
tls_bio, tls_record, tls_wire           OpenSSL's memory BIOs; record boundaries; ciphertext to and from the socket
tls_context, tls_store                  TLS contexts from files; the contexts of one listener
der, distinguished_name                 a certificate's bytes; its subject as text
authenticator                           the interface of authenticators, and those that need the handshake only
authentication, frame_exchange          a channel during authentication; the frames of an authenticator
delayed_refusals                        failed logins whose answer is held back
state, mute                             two tables (``state_table``): the life of a channel, and whether it is read
mute_set                                the mute causes of one channel, with times
channel                                 one connection
read_half, write_half                   the reading and the writing part of a channel; ``channel_callbacks``: their interface to it
watchdog, close_cause                   timeouts; from an error to the cause of the close
selector, timer                         the event loop of a thread; ``event_loop``: the interface between channels and selector
read_size                               how many bytes one read asks for
channel_sink                            the interface through which a channel reports
fd_handler, epoll                       the interface for other descriptors; constants of epoll
options, stats                          settings and counters that the channels of one side share
connection_id, connection_socket        64-bit ids; opening and adopting sockets
======================================= ================================================================================

Import names from their modules: ``from framegate.proxy.network.channel import Channel``.
"""
