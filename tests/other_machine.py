"""A stand-in for another machine, or for a container on this one: bubblewrap and namespaces.

1. It has its own processes, /proc, /dev, /dev/shm, /tmp, home and host name. Of this machine it
   sees, read-only, an interpreter, the system's libraries, and an environment with Shoal and what
   Shoal depends on, installed as users install it. None of the client's folders is there.
2. The loopback network is shared, so that it reaches stores and gateways as over a network.
3. It has a boot id of its own, as another machine has, or this machine's, as a container has.
4. Its clock may be wrong (`skewed_clock.py`), and its Python may have another version.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path

import pytest

import shoal
import skewed_clock
from observing import TIMEOUT, eventually, processes_mentioning

_DEPENDENCIES = ("cloudpickle", "msgspec", "rich", "markdown-it-py", "mdurl", "pygments")
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ssl",
              "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d")  # fmt: skip
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_OWN_MEMORY = ("--tmpfs", "/dev/shm")
_PRIVILEGES = () if os.getuid() else ("--cap-add", "ALL")
"""What root has on another machine, too; it needs this to isolate sandboxes."""
_ENVIRONMENT = "/opt/environment"
"""Where the other machine has its packages."""
_SHIFT = "import skewed_clock\n\nskewed_clock.install()\n"
"""What its Python runs at its start if its clock is wrong."""
NEEDED = pytest.mark.skipif(
    shutil.which("bwrap") is None,
    reason="no bwrap to stand in for another machine: install bubblewrap, or run `make engines`",
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that another machine may have."""

    prefix: Path
    """The folder that it is installed in."""
    version: str
    """Such as 3.12."""

    @property
    def path(self) -> Path:
        return self.prefix / "bin" / f"python{self.version}"


HERE = Interpreter(Path(sys.base_prefix), f"{sys.version_info.major}.{sys.version_info.minor}")


def interpreter(version: str) -> Interpreter:
    """An interpreter of another version; the test is skipped if there is none."""
    found = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for path in (found, *sorted(pyenv.glob(f"{version}.*/bin/python{version}"))):
        asked = ["-c", "import sys; print(sys.base_prefix)"]
        if path is not None:
            answer = subprocess.run([path, *asked], capture_output=True, text=True, check=False)
            if answer.returncode == 0:
                return Interpreter(Path(answer.stdout.strip()), version)
    pytest.skip(f"there is no Python {version} here")


@dataclass
class OtherMachine:
    """Starts programs as another machine would; they end with the block that starts them."""

    folder: Path
    """Where its files are kept here."""
    container: bool = False
    """Whether it is a container on this machine, which has its boot id."""
    shares_memory: bool = False
    """Whether it has this machine's /dev/shm, as a container with `--ipc host`."""
    python: Interpreter = HERE
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that its programs get."""
    ahead: float = 0.0
    """Seconds by which its clock is ahead."""
    _programs: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)
    """Those that have been started and not ended."""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        making = [str(self.python.path), "-m", "venv", "--without-pip", str(self._installed)]
        subprocess.run(making, check=True)
        self.install(Path(shoal.__file__).parent)
        if self.python == HERE:
            for name in _DEPENDENCIES:
                _copy(name, self.packages)
        else:
            self._download()
        if self.ahead:
            self.install(Path(skewed_clock.__file__))
            (self.packages / "sitecustomize.py").write_text(_SHIFT)

    @property
    def _installed(self) -> Path:
        return self.folder / "environment"

    @property
    def packages(self) -> Path:
        """Where its packages are, seen from here."""
        return self._installed / "lib" / f"python{self.python.version}" / "site-packages"

    def install(self, module: Path) -> None:
        """Copy a module or a package to it."""
        if module.is_dir():
            shutil.copytree(
                module, self.packages / module.name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(module, self.packages)

    def _download(self) -> None:
        """Install what another version of Python needs; the test is skipped if that fails."""
        wanted = ["--python-version", self.python.version, "--only-binary", ":all:"]
        done = subprocess.run(
            [*(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
             *("--target", str(self.packages), *wanted, *_DEPENDENCIES)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            pytest.skip(f"no packages for Python {self.python.version}: {done.stderr[-300:]}")

    def command(self, *arguments: str, **variables: str) -> list[str]:
        """What runs its Python with arguments."""
        boot_id = _BOOT_ID if self.container else str(self.folder / "boot_id")
        memory = ("--bind", "/dev/shm", "/dev/shm") if self.shares_memory else _OWN_MEMORY
        given = {"HOME": "/root", "PATH": f"{_ENVIRONMENT}/bin", **self.environment, **variables}
        given |= {skewed_clock.AHEAD: repr(self.ahead)} if self.ahead else {}
        return [
            *("bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
            *("--hostname", self.folder.name, "--clearenv", *_PRIVILEGES),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", *memory),
            *("--tmpfs", "/root", "--chdir", "/root"),
            *[part for path in _LIBRARIES for part in ("--ro-bind-try", path, path)],
            *("--ro-bind", str(self.python.prefix), str(self.python.prefix)),
            *("--ro-bind", str(self._installed), _ENVIRONMENT, "--ro-bind", boot_id, _BOOT_ID),
            *[part for name, value in given.items() for part in ("--setenv", name, value)],
            *(f"{_ENVIRONMENT}/bin/python", *arguments),
        ]

    @contextmanager
    def running(self, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """Its Python, with a pipe for what it prints; all its processes end with the block."""
        mark = secrets.token_hex(8)
        command = self.command(*arguments, OF_TEST=mark, **variables)
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._programs.append(process)
        try:
            yield process
        finally:
            self._programs.remove(process)
            process.kill()
            process.communicate(timeout=TIMEOUT)
            assert eventually(lambda: not processes_mentioning(mark))

    def switch_off(self) -> None:
        """End all that runs there, as a power failure does."""
        for program in self._programs:
            program.kill()
            program.wait()

    @contextmanager
    def gateway(self, *options: str, **variables: str) -> Iterator[dict[str, str]]:
        """A `shoal gateway` on it; what a session is opened with to use it."""
        token = variables.setdefault("SHOAL_TOKEN", secrets.token_hex(16))
        program = ("-m", "shoal.cli.main", "gateway", "--port", "0", *options)
        with self.running(*program, **variables) as process:
            assert process.stdout is not None
            said = process.stdout.readline().decode()
            assert said.startswith("listening on ")
            yield {"platform": said.split()[2].rstrip(","), "token": token}


def _copy(name: str, target: Path) -> None:
    """Copy an installed distribution."""
    for file in distribution(name).files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            path = target / file
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), path)
