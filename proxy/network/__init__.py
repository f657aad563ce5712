"""Frames over non-blocking sockets, after Kafka's network layer. This package does not know of proxying.

======================================= ================================================================================
framing, run                            how a stream of bytes is cut into frames; the whole frames of one read
int32, framings                         the framings, by name
translation                             a run in another framing
receive, send                           the frame in progress; the run that the socket did not take whole
memory_pool, admission_slots            the budget of bytes; which large frame is read while memory is short (``MEMORY.md``)
pool_kinds                              the kinds of memory pool, with one that finds leaks
low_memory_reader, socket_buffers       reading while memory is short; the fill of the kernel's socket buffers
stall_evictor                           closes channels that hold memory and move too little
pipe                                    ``splice`` from socket to socket
transport, plaintext, tls               bytes over one socket, and the size of a read
tls_wire, tls_record                    between the socket and OpenSSL; record boundaries
tls_context, tls_hello                  TLS contexts from files; the host that a client asks for
tls_state, tls_failure                  the states of a TLS connection; OpenSSL's errors as sentences
certificate                             reading a certificate; its serial number, and its subject as text
authenticator                           the interface of authenticators, and those that need the handshake only
authentication, frame_exchange          a channel during authentication; the frames of an authenticator
state, mute                             tables: the states of a channel, and whether it is read
channel                                 one connection
read_half, write_half                   the reading and the writing part of a channel
watchdog, close_cause                   time limits; from an error to the cause of the close
selector, timer                         the event loop of a thread
epoll                                   the bits of epoll's events; the interface for events of one descriptor
channel_sink                            the interface through which a channel reports
options, stats                          settings and counters that the channels of one side share
connection_id, connection_socket        64-bit ids; sockets and their options
faults                                  internal errors that were caught
======================================= ================================================================================

Import names from their modules: ``from framegate.proxy.network.channel import Channel``.
"""
