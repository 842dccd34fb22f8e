"""Report what `engines.py` measured, as tables in Markdown and in a page of the documentation."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine_figures import ENGINES, FIGURES, PEERS


@dataclass(slots=True)
class Measured:
    """What one engine, or one backend of Lithops, has said."""

    times: dict[str, list[float]] = field(default_factory=dict)
    """The seconds of each run, by figure."""
    problems: list[str] = field(default_factory=list)
    """Why there are no, or not all, times."""
    version: str = ""
    """The peer's version."""
    bound: float | None = None
    """How long it ran without a single time."""

    def hear(self, line: Mapping[str, Any]) -> None:
        """Take a line of the measuring process."""
        match line:
            case {"figure": str(figure), "times": list(times)}:
                self.times.setdefault(figure, []).extend(times)
            case {"figure": str(figure), "failure": str(reason)}:
                self.problems.append(f"{figure}: {reason}")
            case {"skipped": str(reason)}:
                self.problems.append(reason)
            case {"version": str(version)}:
                self.version = version

    def median(self, figure: str) -> float | None:
        """Return the median in seconds, if there is any time."""
        times = self.times.get(figure)
        return statistics.median(times) if times else None


def shown(seconds: float | None) -> str:
    """Return a time with three digits."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def table(results: Mapping[str, Measured]) -> str:
    """Return the table of engines, then the problems."""
    rows = [["", *(figure.title for figure in FIGURES)]]
    for name, found in results.items():
        if found.times:
            cells = (shown(found.median(figure.name)) for figure in FIGURES)
            rows.append([ENGINES[name], *cells])
    return _with_problems(rows, {ENGINES[name]: found for name, found in results.items()})


def peer_table(results: Mapping[str, Measured], peers: Mapping[str, Measured]) -> str:
    """Return the table of Lithops' backends beside the engines that they compare with."""
    rows = [["Lithops on", "", "Shoal on", "", "Lithops / Shoal", "target"]]
    for backend, found in peers.items():
        for engine in PEERS[backend].engines:
            ours = results[engine].median("map1000") if engine in results else None
            rows.append(_comparison(backend, found, engine, ours))
    return _with_problems(rows, {PEERS[name].title: found for name, found in peers.items()})


def _comparison(backend: str, found: Measured, engine: str, ours: float | None) -> list[str]:
    peer, theirs = PEERS[backend], found.median("map1000") or found.bound
    more = "more than " if found.bound else ""
    ratio = theirs / ours if theirs and ours else None
    target = "" if peer.least is None else f"{peer.least:g}x"
    if ratio is not None and peer.least is not None:
        target += ": ok" if ratio >= peer.least else ": MISSED"
    times = "-" if ratio is None else f"{more}{ratio:,.0f}x"
    return [peer.title, f"{more}{shown(theirs)}", ENGINES[engine], shown(ours), times, target]


def _with_problems(rows: Sequence[Sequence[str]], results: Mapping[str, Measured]) -> str:
    """Return a table, and a list of what went wrong."""
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    lines = [head, "|" + "---|" * len(rows[0]), *others]
    problems = dict.fromkeys(
        f"- {name}: {each}" for name, found in results.items() for each in found.problems
    )
    return "\n".join([*lines, *(["", *problems] if problems else [])])


def updated(page: str, blocks: Mapping[str, str]) -> str:
    """Return a page with other text between its comments `<!-- NAME -->` and `<!-- /NAME -->`."""
    for name, text in blocks.items():
        head, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition(f"<!-- /{name} -->")
        if not begin or not end:
            raise ValueError(f"the page has no <!-- {name} --> ... <!-- /{name} -->")
        page = f"{head}{begin}\n{text}\n\n{end}{tail}"
    return page
