"""Resume a failed run after fixing the code.

Run it: `python examples/resuming.py`
"""

import shoal
from shoal import task
from shoal.errors import TaskError


@task
def measure(sample: int) -> float:
    """Measure a sample, which would take long in real life and should not happen twice."""
    print(f"measuring sample {sample}")
    return sample * 1.5


def report(divisor: int) -> shoal.Output[float]:
    """Build the workflow: measurements, and an average that divides by `divisor`."""

    @task
    def average(*values: float) -> float:
        return sum(values) / divisor

    return average(*[measure(sample) for sample in range(4)])


if __name__ == "__main__":
    with shoal.Session(workers=2) as session:
        run = session.submit(report(divisor=0))
        try:
            run.result()
        except TaskError as error:
            print(f"failed: {error.reason}")
        resumed = session.submit(report(divisor=4), resume=run.id)
        print("average:", resumed.result())
        executed = {span.task for span in resumed.timeline.of_kind("execute")}
        print("executed by the resumed run:", ", ".join(sorted(executed)))
