"""The farm's image processing."""

from __future__ import annotations

from io import BytesIO

import pytest

from shoal.experiments.image_farm import make_image, process_image

images = pytest.importorskip("PIL.Image")


def test_an_image_becomes_a_thumbnail_and_other_formats_and_keeps_its_description() -> None:
    made = process_image(make_image(512))
    thumbnail = images.open(BytesIO(made["thumbnail"]))
    assert thumbnail.size == (256, 256)
    assert made["size"] == (512, 512)
    assert made["description"] == "512 x 512"
    assert 0 < made["compressed_nbytes"] < made["png_nbytes"]
