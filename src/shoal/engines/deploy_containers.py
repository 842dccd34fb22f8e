"""Make the image of `docker:///IMAGE` from this client's environment.

1. `build` writes a Dockerfile that installs the client's packages, each in the version that the
   client has, and builds it. That needs a base image and a package index.
2. `build_from_here` needs neither. It copies the interpreter, the environment, and the libraries
   that these load; the image works on machines like this one.
3. An image is named after its environment, and after what it has of this machine, so that an
   environment that hasn't changed isn't built again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from shoal.engines.commands import last_lines, output_of
from shoal.engines.containers import PYTHON_LABEL, SHOAL_LABEL
from shoal.engines.environment import command_of, note
from shoal.engines.requirements import Requirements, local_packages, requirements_of
from shoal.errors import PlatformError, SettingsError
from shoal.platform.environment import ENVIRONMENT_VARIABLE, environment_name, this_environment

_BUILD_SECONDS = 3600.0
_UNNEEDED = frozenset((".git",))
_NOT_BASE = _UNNEEDED | {"site-packages", "dist-packages", "test", "idlelib", "ensurepip"}
"""Folders beside the standard library that no task needs."""
_ALWAYS = ("/bin/sh", "/etc/ssl/certs", "/etc/ca-certificates.conf")
_ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": "root:x:0:\n",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `shoal deploy docker`."""
    parser.add_argument("--tag", default="", help="the image's name; by default after its content")
    parser.add_argument(
        "--from-here",
        action="store_true",
        help="copy this interpreter and its environment, for machines like this one, without a "
        "base image or a package index",
    )
    parser.add_argument(
        "--requirements",
        type=Path,
        metavar="FILE",
        help="packages for tasks: a requirements or lock file; by default what is installed here",
    )
    parser.add_argument(
        "--package",
        action="append",
        default=[],
        metavar="NAME",
        help="a package for tasks, in the version that is installed here; repeat for several",
    )
    parser.add_argument(
        "--folder", type=Path, help="where to write the Dockerfile; by default in the data folder"
    )


def deploy(
    args: argparse.Namespace, folder: Path, store: str | None, say: Callable[[str], object]
) -> None:
    """Make an image as the command line asks for, and say how to use it.

    Args:
        args: The options, and the engine as `target`.
        folder: The data folder.
        store: The store, which images have nothing to do with.
        say: Called with each line for the user.
    """
    if args.from_here and args.requirements:
        raise SettingsError("--from-here copies what is installed; leave --requirements out.")
    if args.from_here:
        chosen = ["shoal", *args.package] if args.package else []
        packages = copied(chosen)
        image = build_from_here(args.target, args.tag, chosen)
    else:
        packages = requirements_of(args.requirements, args.package)
        image = build(args.target, args.folder or folder / "image", args.tag, packages)
    parser = argparse.ArgumentParser()
    configure(parser)
    command = command_of(args.target, args, parser)
    note(folder, args.target, image, packages, args.requirements, command)
    say(f"image {image}")
    say(f'Use it with platform="{args.target}:///{image}".')


def build(tool: str, folder: Path, tag: str, packages: Requirements) -> str:
    """Write a Dockerfile to a folder and build it; return the image's name."""
    write_dockerfile(folder, packages)
    texts = [path.read_bytes() for path in (folder / "Dockerfile", folder / "requirements.txt")]
    projects = sorted(_brought(packages).values())
    tag = tag or _tag(packages, [*texts, *_stamps(files_of(projects))])
    if not _exists(tool, tag):
        output_of([tool, "build", "--tag", tag, str(folder)], seconds=_BUILD_SECONDS)
    return tag


def _tag(packages: Requirements, parts: Iterable[bytes]) -> str:
    """The name of an image: that of its environment, and of what is from this machine."""
    return f"shoal:{environment_name(packages.lines)}-{_digest(parts)[:8]}"


def _settings(packages: Requirements) -> list[str]:
    """The instructions that tell what an image has."""
    here = this_environment()
    return [
        f"ENV {ENVIRONMENT_VARIABLE}={environment_name(packages.lines)}",
        f"LABEL {SHOAL_LABEL}={here.shoal}",
        f"LABEL {PYTHON_LABEL}={here.python}",
    ]


def copied(packages: Sequence[str]) -> Requirements:
    """What `build_from_here` copies of the packages that are installed."""
    if not packages:
        return requirements_of(None, ())
    names = set(required(packages)) - local_packages()
    return Requirements(tuple(sorted(names)), whole=True)


def _brought(packages: Requirements) -> dict[str, Path]:
    """The packages that come from folders of this machine: all of them, or Shoal."""
    found = project_folders()
    return found if packages.whole else {n: path for n, path in found.items() if n == "shoal"}


def write_dockerfile(folder: Path, packages: Requirements) -> None:
    """Write a Dockerfile, and what it installs, to a folder."""
    projects = _brought(packages)
    folder.mkdir(parents=True, exist_ok=True)
    pins = [*packages.lines]
    if "shoal" not in projects:
        pins.append(f"shoal=={importlib.metadata.version('shoal')}")
    (folder / "requirements.txt").write_text("\n".join(pins) + "\n")
    for name, project in projects.items():
        ignored = shutil.ignore_patterns(".*", "__pycache__", "out", "site", "tests")
        shutil.copytree(project, folder / "projects" / name, ignore=ignored, dirs_exist_ok=True)
    (folder / "projects").mkdir(exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    resolved = "--no-deps " if packages.whole else ""
    lines = [
        f"FROM python:{version}-slim",
        "COPY requirements.txt /tmp/requirements.txt",
        f"RUN pip install --no-cache-dir {resolved}--requirement /tmp/requirements.txt",
        "COPY projects /opt/projects",
        *(f"RUN pip install --no-cache-dir --no-deps /opt/projects/{name}" for name in projects),
        *_settings(packages),
    ]
    (folder / "Dockerfile").write_text("\n".join(lines) + "\n")


def project_folders() -> dict[str, Path]:
    """The packages that are installed from folders of this machine, by name."""
    found: dict[str, Path] = {}
    for each in importlib.metadata.distributions():
        origin = json.loads(each.read_text("direct_url.json") or "{}")
        if "dir_info" in origin and each.name:
            found[each.name] = Path(unquote(urlsplit(origin["url"]).path))
    return found


def build_from_here(tool: str, tag: str = "", packages: Sequence[str] = ()) -> str:
    """Make an image of this interpreter and its environment; return the image's name.

    Args:
        tool: `docker` or `podman`.
        tag: The image's name; empty: one made from its content.
        packages: The packages to include, with those that they require; empty: all.
    """
    files = sorted(set(_environment(packages)))
    files += sorted(_libraries(files) - set(files))
    made = copied(packages)
    tag = tag or _tag(made, _stamps(files))
    if not _exists(tool, tag):
        _import(tool, tag, files, _settings(made))
    return tag


def _exists(tool: str, tag: str) -> bool:
    try:
        output_of([tool, "image", "inspect", tag])
    except PlatformError:
        return False
    return True


def _stamps(files: Iterable[Path]) -> Iterator[bytes]:
    for path in files:
        if path.suffix == ".pyc":
            continue
        found = path.lstat()
        yield f"{path} {found.st_size} {found.st_mtime_ns}".encode()


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part + b"\n")
    return digest.hexdigest()[:16]


def _environment(packages: Sequence[str]) -> Iterator[Path]:
    """The files of the interpreter and of the packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base, prefix = Path(sys.base_prefix), Path(sys.prefix)
    yield Path(os.path.realpath(sys.executable))
    yield from base.glob("bin/python3*")
    yield from base.glob("lib/libpython*")
    yield from files_of([base / "lib" / version], _NOT_BASE)
    if prefix != base:
        yield from (*prefix.glob("bin/python*"), prefix / "pyvenv.cfg")
    folders = _paths()
    if not packages:
        yield from files_of(folders)
        return
    for name in required(packages):
        distribution = importlib.metadata.distribution(name)
        for file in distribution.files or ():
            path = Path(os.path.normpath(str(distribution.locate_file(file))))
            if path.is_file() and path.is_relative_to(prefix / "lib"):
                yield path
    yield from files_of([each for each in folders if not each.is_relative_to(prefix)])


def _paths() -> list[Path]:
    """The folders of packages on the interpreter's path, wherever it is started."""
    asked = [sys.executable, "-I", "-c", "import sys; print('\\n'.join(sys.path))"]
    found = [Path(line) for line in output_of(asked).splitlines() if line]
    library = Path(os.__file__).parent
    within = {library, library / "lib-dynload"}
    return [path for path in found if path.is_dir() and path not in within]


def required(packages: Sequence[str]) -> list[str]:
    """Packages and, without extras, all that they require and that are installed."""
    found: dict[str, None] = {}
    waiting = list(packages)
    while waiting:
        name = waiting.pop()
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in found:
            found[name] = None
            matched = [_NAME.match(each) for each in requirements if "extra ==" not in each]
            waiting += [each[0] for each in matched if each]
    return sorted(found)


def files_of(folders: Iterable[Path], besides: frozenset[str] = _UNNEEDED) -> Iterator[Path]:
    """The files in folders, besides those in folders of some names."""
    for root in folders:
        for folder, inner, names in os.walk(root):
            inner[:] = sorted(name for name in inner if name not in besides)
            yield from (Path(folder, name) for name in names)


def _libraries(files: Iterable[Path]) -> set[Path]:
    """The shared libraries that programs and extension modules load, and a few other files."""
    binaries = [path for path in files if ".so" in path.name or os.access(path, os.X_OK)]
    always = [Path(each) for each in _ALWAYS if Path(each).exists()]
    found = {path for path in always if path.is_file()}
    for folder in (path for path in always if path.is_dir()):
        found |= set(files_of([folder]))
    for begin in range(0, len(binaries), 500):
        some = [str(path) for path in (*binaries[begin : begin + 500], *always[:1])]
        done = subprocess.run(["ldd", *some], capture_output=True, text=True, check=False)
        for named in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE):
            found.add(Path(os.path.normpath(named)))  # a path may have `..` in it
    return found


def _import(tool: str, tag: str, files: Sequence[Path], settings: Sequence[str]) -> None:
    path = f"{Path(sys.prefix, 'bin')}:/usr/local/bin:/usr/bin:/bin"
    changes = [f"ENV PATH={path}", "ENV LANG=C.UTF-8", *settings]
    command = [tool, "import", *(part for each in changes for part in ("--change", each)), "-", tag]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stderr is not None
    with process:
        try:
            with process.stdin, tarfile.open(fileobj=process.stdin, mode="w|") as image:
                _fill(image, files)
        except BrokenPipeError:
            pass  # it says why
        said = last_lines(process.stderr.read().decode(errors="replace"))
    if process.returncode:
        raise PlatformError(f"`{tool} import` failed: {said}")


def _fill(image: tarfile.TarFile, files: Sequence[Path]) -> None:
    """Write files to an image at their own paths, readable by every user."""
    image.dereference = True
    image.addfile(_folder(Path("/tmp"), 0o1777))
    made: set[Path] = {Path("/"), Path("/tmp")}
    for folder in (Path("/run"), *(path.parent for path in files)):
        for each in (*reversed(folder.parents), folder):
            if each not in made:
                made.add(each)
                image.addfile(_folder(each, 0o755))
    for name, text in _ACCOUNTS.items():
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        image.addfile(entry, io.BytesIO(text.encode()))
    for path in files:
        entry = image.gettarinfo(str(path))
        entry.uid = entry.gid = 0
        entry.mode = 0o755 if entry.mode & 0o100 else 0o644
        with path.open("rb") as file:
            image.addfile(entry, file)


def _folder(path: Path, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(str(path).strip("/"))
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    return entry
