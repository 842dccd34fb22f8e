"""Keeps the embedded server: starts it, and ends it with the last of its clients.

Runs as a script of its own that imports nothing of Shoal, in a process that isn't the client's
child, so that it leaves nothing behind in a client that outlives it. Each client holds a shared
lock on a file; the system lets it go however the client ends. Who gets the exclusive lock knows
that nobody is left, and may remove the socket: otherwise a new server could be listening there.
What is open in the keeper is open in the server: a lock on its file lasts as long as the server.

Should the keeper be killed, the server ends with it: by a signal where the system sends one
(Linux), else by a process that watches the keeper, and hears it end by a pipe that closes.

Arguments: `signal` or `watch`, the lock file, the socket, then the server's command line.
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
_DONE = b"."
"""Tells a watcher that the server has ended."""


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _watched() -> int:
    """Start the process that watches this one; where to write the number of whom to end with it."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        return writing
    os.close(writing)
    os.closerange(3, reading)  # a lock that the server holds must end with the server
    told = b""
    while data := os.read(reading, 32):
        told += data
    if told and not told.endswith(_DONE):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(told), signal.SIGKILL)
    os._exit(0)


def _tell(watcher: int, what: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # somebody has killed it
        os.write(watcher, what)


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
    way, lock, socket, *command = sys.argv[1:]
    os.umask(0o077)  # for what the server writes
    if os.fork():
        os._exit(0)
    watcher = _watched() if way == "watch" else None
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        close_fds=False,
        restore_signals=False,  # a file that may not grow is an error, which the server can tell
        preexec_fn=_die_with_parent if watcher is None else None,
    )
    if watcher is not None:
        _tell(watcher, str(server.pid).encode())
    alone = threading.Event()
    threading.Thread(target=_end_when_alone, args=(lock, server, alone), daemon=True).start()
    server.wait()
    if watcher is not None:
        _tell(watcher, _DONE)
    if alone.is_set():
        with contextlib.suppress(OSError):
            os.unlink(socket)


if __name__ == "__main__":
    _main()
