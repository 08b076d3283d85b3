"""Pictures to pixels, with Pillow. Runs in the decoder's child process: see `decoder_process`.

Of an animation the first frame is taken. EXIF's rotation is applied, transparency is laid over white, and
CMYK, grey and palette pictures become RGB.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

from stretto.backends.media import Picture
from stretto.errors import InvalidMediaError
from stretto.media_files.pictures import PictureLimits, inspect

_FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")


def decode_picture(data: bytes, limits: PictureLimits) -> Picture:
    """Raises InvalidMediaError for everything that is not a picture within the limits."""
    header = inspect(data, limits)
    try:
        from PIL import Image
    except ImportError:
        raise InvalidMediaError(
            "this server cannot read pictures: Pillow is not installed",
            hint="the operator installs stretto[media]",
        ) from None
    Image.MAX_IMAGE_PIXELS = limits.pixels_max
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                if image.width * image.height > limits.pixels_max:
                    raise InvalidMediaError(
                        f"a picture of {image.width} x {image.height} pixels is too large"
                    )
                rgb = _upright_rgb(image)
    except InvalidMediaError:
        raise
    except MemoryError:
        raise InvalidMediaError("the picture needs too much memory", hint="send a smaller picture") from None
    except Exception as error:  # Pillow's plugins raise nearly everything
        raise InvalidMediaError(f"the {header.format.upper()} picture is truncated or damaged") from error
    return Picture(rgb.width, rgb.height, rgb.tobytes())


def _upright_rgb(image: Any) -> Any:
    from PIL import Image, ImageOps

    image.load()
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16 bits of grey
        upright = upright.convert("I").point(lambda value: value / 257).convert("L")
    if upright.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in upright.info:
        over = upright.convert("RGBA")
        white = Image.new("RGBA", over.size, (255, 255, 255, 255))
        upright = Image.alpha_composite(white, over)
    return upright.convert("RGB")
