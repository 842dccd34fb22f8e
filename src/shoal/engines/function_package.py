"""The code of a function: Shoal and the client's packages in a zip, built without docker.

1. A package has the versions of the client's environment, or those of a requirements file. Wheels
   are for the function's system, whatever the client's is.
2. It is named after its content. What was built before is used again.
3. Shoal itself is copied from the client, so that both have the same, released or not.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.engines.requirements import Requirements, requirements_of
from shoal.errors import PlatformError
from shoal.platform.environment import ENVIRONMENT_VARIABLE, environment_name
from shoal.private import private_folder

Say = Callable[[str], None]
"""Told about each step."""

UNZIPPED_NBYTES = 250 * 2**20
"""The most bytes of a function's code."""
_UNNEEDED = frozenset(
    ("boto3", "botocore", "s3transfer", "jmespath", "awslambdaric", "rich", "pygments",
     "markdown-it-py", "mdurl")
)  # fmt: skip
"""What only a client needs, or Lambda has."""
_LEFT_OUT = frozenset(("__pycache__", "RECORD", "INSTALLER", "REQUESTED", ".lock"))
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into a package."""

    packages: Requirements
    python: str
    """Python's version, such as 3.11."""
    machine: str
    """`x86_64` or `arm64`."""

    @property
    def environment(self) -> str:
        """Names its packages."""
        return environment_name(self.packages.lines, self.python)

    @property
    def name(self) -> str:
        """Names the package: by its environment, its processor, and Shoal's files."""
        digest = hashlib.sha256(f"{self.machine} {_own_digest()}".encode()).hexdigest()
        return f"lambda-{self.environment}-{digest[:8]}"


def contents(
    requirements: Path | None, packages: Sequence[str], machine: str, python: str = ""
) -> Contents:
    """The contents of a package.

    Args:
        requirements: A requirements or lock file; None: none.
        packages: Packages in the client's versions; with no file and none of them, all that the
            client has installed.
        machine: The function's processor.
        python: Its version of Python; empty: the client's.
    """
    version = python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    return Contents(requirements_of(requirements, packages, _UNNEEDED), version, machine)


def build(wanted: Contents, folder: Path, say: Say) -> Path:
    """The zip with these contents, in a folder; built if it isn't there yet."""
    path = private_folder(folder) / f"{wanted.name}.zip"
    if path.exists():
        say(f"package {path.name}: built before")
        return path
    with tempfile.TemporaryDirectory() as temporary:
        target = Path(temporary, "package")
        target.mkdir()
        say(f"package {path.name}: installing {len(wanted.packages.lines)} requirements")
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
    lines.write_text("\n".join(wanted.packages.lines) + "\n")
    chip = {"x86_64": "x86_64", "arm64": "aarch64"}[wanted.machine]
    newer = tuple(map(int, wanted.python.split("."))) >= (3, 12)  # on Amazon Linux 2023
    common = ["--target", str(target), "--only-binary", ":all:", "--requirement", str(lines)]
    common += ["--python-version", wanted.python, *(["--no-deps"] if wanted.packages.whole else [])]
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
ENV {variable}={environment}
CMD ["{handler}"]
"""


def write_image(wanted: Contents, folder: Path, handler: str) -> None:
    """Write a folder from which docker builds an image with these contents."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "package").mkdir(parents=True)
    _copy_shoal(folder / "package")
    (folder / "requirements.txt").write_text("\n".join(wanted.packages.lines) + "\n")
    text = DOCKERFILE.format(
        python=wanted.python,
        handler=handler,
        variable=ENVIRONMENT_VARIABLE,
        environment=wanted.environment,
    )
    (folder / "Dockerfile").write_text(text)
