"""What a socket is told of the configuration: how much the kernel buffers for it, and when it asks whether the peer is still there.

To be told before ``bind`` and ``connect``: the window that a peer may ever be offered is fixed with the first packet. What a listening TCP socket was
told holds for what it accepts; Unix sockets inherit nothing.

Source: Linux's socket(7) and tcp(7).
"""

import socket

from framegate.proxy.config.model import SocketConfig

__all__ = ["set_socket_options"]

MS_PER_S = 1000


def set_socket_options(sock: socket.socket, config: SocketConfig) -> None:
    """Tell a socket; what is 0 or None is left to the kernel. Keep-alive is TCP's only.

    Raises:
        OSError: the kernel refuses.
    """
    if config.receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer)
    if config.send_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer)
    keep_alive = config.keep_alive
    if keep_alive is not None and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, -(-keep_alive.idle_ms // MS_PER_S))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, -(-keep_alive.interval_ms // MS_PER_S))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, keep_alive.probes)
