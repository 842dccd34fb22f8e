"""Keep the embedded server running: start it, and stop it after its last client.

This script imports nothing from Shoal. Its process isn't a child of the client, so it leaves no
zombie in a client that outlives it. Each client holds a shared lock on a file, which the system
releases however the client ends. Once the keeper gets the exclusive lock, no client is left, and it
may remove the socket; without the lock, a new server might already listen there. The server
inherits the keeper's open files, so a lock on its data file lasts as long as the server.

If the keeper is killed, the server ends too: by a signal where the system can send one (Linux),
else by a process that watches the keeper through a pipe, which closes when the keeper ends.

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
    """Start a process that watches this one; return where to write the pid to kill after it."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        return writing
    os.close(writing)
    os.closerange(3, reading)  # a lock that the server holds must not outlive it
    received = b""
    while data := os.read(reading, 32):
        received += data
    if received and not received.endswith(_DONE):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(received), signal.SIGKILL)
    os._exit(0)


def _tell(watcher: int, what: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the watcher was killed
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
    os.umask(0o077)  # for the files of the server
    if os.fork():
        os._exit(0)
    watcher = _watched() if way == "watch" else None
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        close_fds=False,
        restore_signals=False,  # the server reports a file size limit as an error
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
