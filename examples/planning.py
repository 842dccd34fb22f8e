"""Plan with history: previews, planners, goals and a report after the run."""

import time

import shoal
from shoal import NonUniformPlanner, Percentile, Resources, task


@task
def read(part: int) -> bytes:
    """Return half a megabyte of input."""
    time.sleep(0.02)
    return bytes([part]) * 500_000


@task
def clean(data: bytes) -> bytes:
    """Clean a part; later parts take longer."""
    time.sleep(0.02 + 0.02 * data[0])
    return data[::2]


@task
def merge(*parts: bytes) -> int:
    """Add up the sizes of all parts."""
    return sum(map(len, parts))


def pipeline(parts: int = 8) -> shoal.Output[int]:
    """Build the workflow; nothing runs yet."""
    return merge(*[clean(read(part)) for part in range(parts)])


if __name__ == "__main__":
    settings = {"name": "planning-example", "workers": 2}
    guess = pipeline().plan(**settings)
    print(f"predicted from {guess.basis}: {guess.makespan:.2f} s")

    for _ in range(4):
        run = pipeline().submit(**settings)
        run.result()
        print(f"a run took {run.makespan:.2f} s")

    plan = pipeline().plan(**settings)
    print(plan)
    print(plan.explain("clean#7"))
    print()

    mixed = NonUniformPlanner([Resources(2048), Resources(1800)], sla=Percentile(90))
    print(plan.compare(pipeline().plan(planner=mixed, **settings)))
    print()

    cheap = pipeline().plan(deadline=10, **settings)
    print(f"within 10 s, with {len(cheap.plan.workers)} worker: ${cheap.cost.price:.2g}")
    hopeless = pipeline().plan(deadline=0.001, **settings)
    print(*hopeless.plan.notes)
    print()

    run = pipeline().submit(sla=Percentile(95), **settings)
    run.result()
    print(run.report(width=80))
