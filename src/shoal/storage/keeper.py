"""Keeps the embedded server: starts it, and ends it with the last of its clients.

Runs as a script of its own that imports nothing of Shoal, in a process that isn't the client's
child, so that it leaves nothing behind in a client that outlives it. Each client holds a shared
lock on a file; the system lets it go however the client ends. Who gets the exclusive lock knows
that nobody is left, and may remove the socket: otherwise a new server could be listening there.
What is open in the keeper is open in the server: a lock on its file lasts as long as the server.

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


def _end_when_alone(lock: str, server: "subprocess.Popen[bytes]", alone: threading.Event) -> None:
    descriptor = os.open(lock, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    alone.set()
    server.terminate()
    try:
        server.wait(3)
    except subprocess.TimeoutExpired:
        server.kill()


def _main() -> None:
    lock, socket, *command = sys.argv[1:]
    os.umask(0o077)  # for what the server writes
    if os.fork():
        os._exit(0)
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        close_fds=False,
        restore_signals=False,  # a file that may not grow is an error, which the server can tell
        preexec_fn=_die_with_parent,
    )
    alone = threading.Event()
    threading.Thread(target=_end_when_alone, args=(lock, server, alone), daemon=True).start()
    server.wait()
    if alone.is_set():
        with contextlib.suppress(OSError):
            os.unlink(socket)


if __name__ == "__main__":
    _main()
