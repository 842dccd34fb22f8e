"""Fixtures for all tests: private folders, a session, and a check for leftover processes."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import linux_hidden
from observing import eventually, processes_mentioning
from shoal import system
from shoal.engine import default_engine
from shoal.session import Session

if not Path("/proc/self").exists():
    raise pytest.UsageError("The tests look at processes through /proc: run them on Linux.")
if not system.LINUX:
    linux_hidden.install()

settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("same"), max_examples=10)
settings.register_profile("search", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")  # the same cases every time; `make search` generates others


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect thousands of tests, which live on, without the garbage collector."""
    thresholds = gc.get_threshold()
    gc.set_threshold(0)  # `gc.disable` would last: Dask remembers how it was when it is imported
    result = yield
    gc.freeze()
    gc.set_threshold(*thresholds)
    return result


@pytest.fixture(scope="session", autouse=True)
def private_folder() -> Iterator[Path]:
    """The folder of all history, logs, sockets and locks; no process may be left in it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in background jobs
    folder = Path(tempfile.mkdtemp(prefix="shoal-"))
    with pytest.MonkeyPatch.context() as patch:
        for variable in [name for name in os.environ if name.startswith("SHOAL_")]:
            if variable != system.PORTABLE:
                patch.delenv(variable)
        if not system.LINUX:
            path = (str(Path(__file__).parent / "portable"), os.environ.get("PYTHONPATH", ""))
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
            patch.setenv(linux_hidden.NOTES, str(folder / "linux-only"))
        for variable, name in (("XDG_DATA_HOME", "data"), ("XDG_RUNTIME_DIR", "run")):
            (folder / name).mkdir(mode=0o700)
            patch.setenv(variable, str(folder / name))
        # Preloading what other tests imported would slow down every first start.
        patch.setattr("shoal.client.environment._PRELOADABLE", ("numpy",))
        if "PYTHON_COVERAGE_CONFIG" in os.environ:  # in `make coverage`
            patch.setattr("shoal.client.backends.WORKER_ENTRY", "covered_entry:handle")
        yield folder
        default_engine.close()
    eventually(lambda: not processes_mentioning(str(folder)))
    left = processes_mentioning(str(folder))
    notes = folder / "linux-only"
    used = notes.read_text() if notes.exists() else ""
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"processes are left over: {left}"
    assert not used, f"only Linux has what Shoal used: {used}"


@pytest.fixture(scope="session")
def session(private_folder: Path) -> Iterator[Session]:
    """A session with embedded store and gateway, shared by all tests that need no other."""
    with Session(workers=2) as session:
        yield session


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1, with its key beside it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", path.with_suffix(".key"), "-out", path),
        ],
        check=True,
        capture_output=True,
    )
    return path
