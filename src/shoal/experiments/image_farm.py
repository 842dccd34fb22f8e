"""Process images in a farm as in the farm paper: thumbnail, compression, metadata, conversion.

Images are generated: gradients of colour with some noise, so that they
compress like photographs.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from shoal.errors import UsageError
from shoal.experiments.parameters import check_counts

if TYPE_CHECKING:
    from PIL import Image

SIZES = (512, 1024, 2048, 4096)
"""Side lengths in pixels."""
_THUMBNAIL = 256
_DESCRIPTION = 0x010E
"""The EXIF tag of an image's description."""


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise UsageError(f"Images need {error.name}: pip install 'shoal[experiments]'.") from error
    return Image


def make_image(size: int) -> bytes:
    """Create a square image as a JPEG file."""
    check_counts("make_image", size=size)
    images = _pillow()
    gradient = images.linear_gradient("L").resize((size, size))
    channels = (gradient, gradient.rotate(90), images.effect_noise((size, size), 24))
    image = images.merge("RGB", channels)
    exif = images.Exif()
    exif[_DESCRIPTION] = f"{size} x {size}"
    return _encoded(image, "JPEG", quality=85, exif=exif)


def process_image(data: bytes) -> dict[str, Any]:
    """Process an image; return the sizes of its versions and its metadata."""
    image = _pillow().open(BytesIO(data))
    exif = image.getexif()
    image.load()
    thumbnail = image.copy()
    thumbnail.thumbnail((_THUMBNAIL, _THUMBNAIL))
    return {
        "size": image.size,
        "description": exif.get(_DESCRIPTION, ""),
        "thumbnail": _encoded(thumbnail, "JPEG", quality=75, exif=exif),
        "compressed_nbytes": len(_encoded(image, "JPEG", quality=40)),
        "png_nbytes": len(_encoded(image, "PNG", compress_level=1)),
    }


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
