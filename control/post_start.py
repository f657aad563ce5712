"""The postStart hook of a pod, ``python -P -m framegate.control.post_start HOST PORT SECONDS``: waits until framegate's port of ``health`` says that
it serves. The kubelet starts the application's containers when the hook has ended; when it has failed, the kubelet restarts framegate's container.

A startup probe would be asked once a second. Like ``pre_stop`` the hook imports nothing that costs processor time, which it shares with framegate's
start; for the same reason it asks more rarely the longer the start takes.
"""

import _socket
import sys
import time

_FIRST_S = 0.02
_SHARE = 0.05  # of the time so far: each wait is longer by so much
_ANSWER_S = 5.0  # the longest time for one answer


def wait_until_started(host: str, port: int, most_s: float) -> str:
    """Wait until ``/startup`` is answered with 200, ``most_s`` seconds at most. Returns: The last reason why it was not; empty: it was."""
    began = time.monotonic()
    while True:
        reason = _ask(host, port)
        waited_s = time.monotonic() - began
        if not reason or waited_s >= most_s:
            return reason
        time.sleep(min(_FIRST_S + _SHARE * waited_s, most_s - waited_s))


def _ask(host: str, port: int) -> str:
    sock = _socket.socket(_socket.AF_INET6 if ":" in host else _socket.AF_INET, _socket.SOCK_STREAM)
    try:
        sock.settimeout(_ANSWER_S)
        sock.connect((host, port))
        sock.send(b"GET /startup HTTP/1.0\r\n\r\n")
        answer = b""
        while data := sock.recv(4096):
            answer += data
    except OSError as error:
        return str(error)
    finally:
        sock.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] == [b"200"]:
        return ""
    return body.decode("utf-8", "replace").strip() or "the connection was closed without an answer"


if __name__ == "__main__":
    _host, _port, _seconds = sys.argv[1:]
    if _reason := wait_until_started(_host, int(_port), float(_seconds)):
        sys.exit(f"framegate does not serve after {_seconds} s: {_host} port {_port}: {_reason}")
