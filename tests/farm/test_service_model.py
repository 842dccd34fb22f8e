"""The service-time model: how long tasks take by the size of their inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.main import main
from shoal.errors import UsageError
from shoal.farm.service_model import PAPER_SERVICE, ServiceModel


def test_fitting_predictions_of_a_model_recovers_the_model() -> None:
    samples = [(float(size), PAPER_SERVICE.seconds(size)) for size in (512, 1024, 2048, 4096)]
    found = ServiceModel.fitted(samples)
    assert found.quadratic == pytest.approx(PAPER_SERVICE.quadratic)
    assert found.constant == pytest.approx(PAPER_SERVICE.constant)


def test_the_size_for_a_time_is_the_inverse_of_the_time_for_a_size() -> None:
    assert PAPER_SERVICE.size(PAPER_SERVICE.seconds(1234)) == pytest.approx(1234)
    assert PAPER_SERVICE.size(0.0) == 0.0


def test_no_model_predicts_a_negative_time() -> None:
    assert ServiceModel.fitted([(10, 0.1), (100, 50.0)]).constant == 0.0


@pytest.mark.parametrize("samples", [[(10, 1.0), (10, 1.1)], [(10, 5.0), (100, 1.0)]])
def test_data_without_a_model_is_rejected(samples: list[tuple[float, float]]) -> None:
    with pytest.raises(UsageError):
        ServiceModel.fitted(samples)


def test_a_model_survives_saving_and_another_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    PAPER_SERVICE.save(path)
    assert ServiceModel.load(path) == PAPER_SERVICE
    path.write_text("[]")
    with pytest.raises(UsageError, match="calibrate"):
        ServiceModel.load(path)


@pytest.mark.real
def test_the_command_measures_images_and_writes_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    path = tmp_path / "model.json"
    command = ["farm", "calibrate", "--sizes", "64,512", "--repeats", "2", "--file", str(path)]
    assert main(command) == 0
    assert "seconds = " in capsys.readouterr().out
    model = ServiceModel.load(path)
    assert model.seconds(512) > model.seconds(64) > 0


def test_a_missing_function_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["farm", "calibrate", "--function", "shoal.nothing:here"]) == 2
    assert "shoal.nothing:here" in capsys.readouterr().err
