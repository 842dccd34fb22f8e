"""A Slurm of the tests' own: munged, slurmctld and slurmd on this machine."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from observing import eventually
from shoal import system
from store_servers import free_port, tcp_server, url_of

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo")
_CPUS = 16
"""More than there are: the tests' jobs wait most of the time."""


@contextmanager
def slurm(_folder: Path) -> Iterator[tuple[str, str]]:
    """Jobs are jobs of a cluster of one node."""
    with _cluster(), tcp_server() as port:
        yield "slurm:///main?time=30&idle_seconds=2", url_of(port)
        assert eventually(lambda: not jobs()), "jobs are left over"


def jobs() -> list[str]:
    """The jobs that haven't ended."""
    asked = ["squeue", "--noheader", "--array", "--format=%i"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()


@contextmanager
def _cluster() -> Iterator[None]:
    missing = [program for program in _PROGRAMS if not shutil.which(program)]
    if os.getuid() or missing:
        pytest.skip("Slurm: needs root and the Debian packages slurm-wlm, munge (`make engines`)")
    folder = Path(tempfile.mkdtemp(prefix="shoal-slurm-"))
    folder.chmod(0o755)
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        configuration = _configured(folder)
        patch.setenv("SLURM_CONF", str(configuration))
        for command in (
            _munged(folder),
            ["slurmctld", "-D", "-i", "-f", str(configuration)],
            ["slurmd", "-D", "-f", str(configuration), "-N", "here"],
        ):
            stack.enter_context(_daemon(command, folder))
            if command[0] == "munged":
                assert eventually((folder / "munge.socket").exists), _said(folder)
        assert eventually(_idle), _said(folder)
        yield


def _configured(folder: Path) -> Path:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = socket.gethostname()
    memory_mb = system.memory_nbytes() // 2**20
    path = folder / "slurm.conf"
    path.write_text(f"""
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
KillWait=5
NodeName=here NodeHostname={host} NodeAddr=127.0.0.1 CPUs={_CPUS} RealMemory={4 * memory_mb}
PartitionName=main Nodes=here Default=YES MaxTime=60 State=UP
""")
    return path


def _munged(folder: Path) -> list[str]:
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    names = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
    files = [f"--{option}={folder}/munge.{name}" for option, name in names.items()]
    return ["munged", "--foreground", "--force", *files, f"--seed-file={folder}/munge.seed"]


@contextmanager
def _daemon(command: list[str], folder: Path) -> Iterator[None]:
    """A daemon that ends with the block."""
    with (folder / f"{command[0]}.out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def _idle() -> bool:
    asked = ["sinfo", "--noheader", "--format=%T"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.split() == ["idle"]


def _said(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace")[-800:] for path in folder.glob("*.[lo]*"))
