"""Measure Shoal on every engine that can be started here, and Lithops beside it.

Each engine is started anew `--starts` times, in a process of its own, with the same two workers and
a store on loopback: each start gives one cold run, and `--repeats` runs of everything else. The
tables have medians. An engine that can't be started is left out, with the reason; one that takes
longer than `--limit` seconds is ended, and its figures so far count.

Lithops runs the same 1,000 no-ops with its `map`: on localhost, where Shoal has a gateway and
processes, and on the same emulator of Lambda, with as many environments.

Use an otherwise idle machine: the load before the start is printed with the figures. The tests'
starters of engines are used, so `make engine-bench` installs what `make engines` does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arguments import names_of, new_file, positive
from compare import no_process_left
from engine_figures import ENGINES, PEERS
from engine_report import Measured, peer_table, table, updated
from processes import end_descendants, end_tree

from shoal.experiments.machine import described

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
LITHOPS = HERE.parent / "out" / "lithops" / "bin" / "python"


def measured(command: Sequence[str], limit: float) -> tuple[list[dict[str, Any]], str | None]:
    """Run a measuring process, and return its lines and what went wrong, if anything did.

    It appends its lines to the file whose path replaces `FILE` in the command.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        said = folder / "said"
        said.touch()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, *(str(said) if word == "FILE" else word for word in command)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(folder),
                start_new_session=True,
            )  # fmt: skip
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
                end_tree(process.pid)
                process.wait()
        end_descendants(os.getpid())
        lines = [json.loads(line) for line in said.read_text().splitlines()]
        last = (folder / "log").read_text(errors="replace").strip().rpartition("\n")[2]
        problem = ended(limit) if code is None else f"failed: {last[:200]}"
        return lines, problem if code != 0 else None


def ended(limit: float) -> str:
    """Say that a process was ended in the middle of a run."""
    return f"ended after {limit:g} s"


def _environment(folder: Path) -> dict[str, str]:
    """Keep an engine apart from everything else that its user runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    for name in ("data", "run"):
        (folder / name).mkdir(mode=0o700)
    path = os.pathsep.join(map(str, (TESTS, TESTS / "engines")))
    own = {"XDG_DATA_HOME": folder / "data", "XDG_RUNTIME_DIR": folder / "run", "PYTHONPATH": path}
    return kept | {name: str(value) for name, value in own.items()}


def measure_engine(name: str, starts: int, repeats: int, limit: float) -> Measured:
    """Start an engine several times, and measure it."""
    found = Measured()
    for start in range(starts):
        print(f"{name}, start {start + 1} of {starts}", file=sys.stderr)
        command = [str(HERE / "engine_overheads.py"), name, str(repeats), "FILE"]
        lines, problem = measured(command, limit)
        for line in lines:
            found.hear(line)
        if problem is not None:
            found.problems.append(problem)
        if not found.times:
            break
    return found


def measure_peer(backend: str, limit: float) -> Measured:
    """Measure a backend of Lithops; the time so far counts as a bound if it isn't done in time."""
    found = Measured()
    if not LITHOPS.exists():
        found.problems.append("Lithops isn't installed: run `make engine-bench`")
        return found
    print(f"Lithops, {backend}", file=sys.stderr)
    repeats = str(PEERS[backend].repeats)
    command = [str(HERE / "lithops_peer.py"), backend, repeats, "FILE", str(LITHOPS)]
    lines, problem = measured(command, limit)
    for line in lines:
        found.hear(line)
    found.times["map1000"] = [line["seconds"] for line in lines if "seconds" in line]
    if problem is not None:
        found.problems.append(problem)
    if problem == ended(limit) and not found.times["map1000"]:
        found.bound = limit
    return found


def parser() -> argparse.ArgumentParser:
    """Parse the command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add, peers = made.add_argument, list(PEERS)
    add("--engines", type=names_of(list(ENGINES)), default=list(ENGINES), metavar="A,B",
        help=",".join(ENGINES))  # fmt: skip
    add("--lithops", type=names_of([*peers, "none"]), default=peers, metavar="A,B",
        help=",".join([*peers, "none"]))  # fmt: skip
    add("--starts", type=positive, default=3, metavar="N", help="starts of an engine (default: 3)")
    add("--repeats", type=positive, default=5, metavar="N", help="runs per start (default: 5)")
    add("--limit", type=float, default=300.0, metavar="S",
        help="seconds that one start of an engine may take (default: 300)")  # fmt: skip
    add("--lithops-limit", type=float, default=600.0, metavar="S",
        help="seconds that one backend of Lithops may take (default: 600)")  # fmt: skip
    add("--docs", type=Path, metavar="FILE", help="put the tables into this page, too")
    add("--json", type=new_file, metavar="FILE", help="write every time to this file")
    return made


def main() -> int:
    options = parser().parse_args()
    load = os.getloadavg()[0]
    try:
        with no_process_left():
            results = {
                name: measure_engine(name, options.starts, options.repeats, options.limit)
                for name in options.engines
            }
            peers = {
                backend: measure_peer(backend, options.lithops_limit)
                for backend in options.lithops
                if backend in PEERS
            }
    except KeyboardInterrupt:
        return 130
    version = next((found.version for found in peers.values() if found.version), "")
    setting = (
        f"{described()}, load {load:.1f} before the start. Medians of {options.repeats} runs (four "
        f"times as many of one task) in each of {options.starts} starts"
        + (f"; Lithops {version}." if version else ".")
    )
    found = {"engines": f"{setting}\n\n{table(results)}"}
    if peers:
        found["lithops"] = peer_table(results, peers)
    print(*found.values(), sep="\n\n")
    if options.docs:
        page = options.docs.read_text()
        options.docs.write_text(updated(page, found))
    if options.json:
        every = {"setting": setting, "engines": _plain(results), "lithops": _plain(peers)}
        options.json.write_text(json.dumps(every, indent=2) + "\n")
    return 0


def _plain(results: Mapping[str, Measured]) -> dict[str, Any]:
    return {name: asdict(found) for name, found in results.items()}


if __name__ == "__main__":
    sys.exit(main())
