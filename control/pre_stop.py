"""The preStop hook of a pod, ``python -P -m framegate.control.pre_stop SOCKET``: the process that listens on the admin socket gets SIGUSR1, and
begins a drain as ``drain.accept`` says.

The kubelet runs the hook in framegate's container, where whoever may do this may kill framegate as well. It takes a tenth of the processor time of
``framegate drain --no-wait``, since it imports neither the command line nor gRPC.
"""

import _socket
import os
import signal
import sys

_INT = 4  # bytes
_CREDENTIALS = 3 * _INT  # ``struct ucred``: process, user, group


def signal_server(path: str) -> None:
    """Send SIGUSR1 to the process that listens on a Unix socket, as this PID namespace sees it. Raises OSError: nobody listens, or the process
    belongs to another user.
    """
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        sock.connect(path)
        server = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS)
    finally:
        sock.close()
    os.kill(int.from_bytes(server[:_INT], sys.byteorder), signal.SIGUSR1)


if __name__ == "__main__":
    try:
        signal_server(sys.argv[1])
    except OSError as error:
        sys.exit(f"framegate is not told to drain: {sys.argv[1]}: {error}")
