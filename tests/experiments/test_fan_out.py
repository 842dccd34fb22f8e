"""The wide fan-out: its shape and its byte count."""

from typing import Any

import pytest

from evaluating import evaluated, shape
from shoal.errors import UsageError
from shoal.experiments.fan_out import fan_out
from shoal.workflow import Workflow


def test_it_fans_out_once_and_in_once() -> None:
    workflow = Workflow.of(fan_out(7))
    assert shape(workflow) == {(0, "generate"): 1, (1, "count"): 7, (2, "collect"): 1}


def test_every_byte_is_counted() -> None:
    assert sum(evaluated(fan_out(256, nbytes=5_000))) == 5_000


@pytest.mark.parametrize("bad", [{"width": 0}, {"width": 257}, {"nbytes": 0}, {"seconds": -1}])
def test_invalid_arguments_are_rejected(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"fan_out\({next(iter(bad))}="):
        fan_out(**bad)
