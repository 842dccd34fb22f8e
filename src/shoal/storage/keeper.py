"""Keeps the embedded server: starts it, and ends it with the last of its clients.

Runs as a script of its own that imports nothing of Shoal. Each client holds a shared lock on a
file; the system lets it go however the client ends. Who gets the exclusive lock knows that
nobody is left.

Arguments: the lock file, the socket, then the server's command line.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_when_alone(lock: str, server: "subprocess.Popen[bytes]") -> None:
    descriptor = os.open(lock, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    server.terminate()
    try:
        server.wait(3)
    except subprocess.TimeoutExpired:
        server.kill()


def _main() -> None:
    lock, socket, *command = sys.argv[1:]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)
    threading.Thread(target=_end_when_alone, args=(lock, server), daemon=True).start()
    server.wait()
    with contextlib.suppress(OSError):
        os.unlink(socket)


if __name__ == "__main__":
    _main()
