#!/usr/bin/env python3
"""What torchvision and PIL make of small JPEGs of all kinds, which it has as well, for the tests beside it: pil_reference.json.

  python3 pil_reference.py > pil_reference.json        needs torchvision 0.26, pillow 13, numpy
"""
import base64
import io
import json
import sys

import numpy as np
from PIL import Image
from torchvision.transforms import functional as T


def numbers(key, count):
    """In [-0.5, 0.5): number j of sequence `key`."""
    bits = (np.arange(count, dtype=np.int64) * 2654435761 + key * 40503 + 12345) % 2**32
    return bits / 2.0**32 - 0.5


def picture(width, height, mode):
    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 90 * np.sin(x / (3 + c)) * np.cos(y / (5 - c)) + 37 * numbers(c, width * height).reshape(height, width)
             for c in range(4)]
    pixels = np.clip(np.stack(waves, -1), 0, 255).astype(np.uint8)
    channels = {"L": 1, "RGB": 3, "CMYK": 4}[mode]
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels[:, :, :channels].copy(), mode)


def text(data):
    return base64.b64encode(data).decode()


def transformed(name, width, height, mode="RGB", **saved):
    file = io.BytesIO()
    picture(width, height, mode).save(file, "JPEG", quality=85, **saved)
    image = Image.open(io.BytesIO(file.getvalue())).convert("RGB")
    size, resized, part = 16, 18, [width // 5, height // 7, width // 2, height // 2]
    validated = T.center_crop(T.resize(image, resized), size)
    cropped = T.resized_crop(image, part[1], part[0], part[3], part[2], [size, size])
    normalised = T.normalize(T.to_tensor(validated), [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    return {"name": name, "file": text(file.getvalue()), "width": width, "height": height, "size": size,
            "resized": resized, "part": part, "decoded": text(np.asarray(image).tobytes()) if width < 60 else "",
            "validated": text(np.asarray(validated).tobytes()), "cropped": text(np.asarray(cropped).tobytes()),
            "normalised": [normalised[c, y, y].item() for c in range(3) for y in range(size)]}


if __name__ == "__main__":
    json.dump({"images": [transformed("4:2:0", 53, 37), transformed("4:4:4", 37, 53, subsampling=0),
                          transformed("4:2:2", 45, 45, subsampling=1),
                          transformed("progressive", 70, 50, progressive=True), transformed("grey", 40, 31, "L"),
                          transformed("CMYK", 31, 40, "CMYK"), transformed("small", 11, 9),
                          transformed("large", 131, 97)]}, sys.stdout)
    print()
