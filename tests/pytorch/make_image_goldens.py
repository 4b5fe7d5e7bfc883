"""Makes tests/goldens/images.safetensors with Pillow: python tests/pytorch/make_image_goldens.py

NAME.file  the bytes of a JPEG or PNG file
NAME.rgb   its pixels [H,W,3], by ImageOps.exif_transpose(image).convert("RGB")
augment.OP.M.rgb          what the op makes of augment.in with magnitude M / 100, in the order of ImageOp
resize.NAME.box and .size, of resize.in: what is cut out (top, left, height, width) and resized to (height, width)
resize.NAME.rgb           the result, by resize(BILINEAR) along rows and then along columns: Pillow 13 may take the other
                          order, which is known to round otherwise by at most 1
"""

import io
import pathlib
import struct
import zlib

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from resnet import save_safetensors

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "goldens"


def picture(height, width, channels=3, levels=256, seed=0):
    """Slopes, an edge and noise: u16 [height,width,channels] below `levels`."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(seed)
    planes = [np.sin(x / (5 + c)) + np.cos(y / (4 + c)) + ((x + y) % 29 < 9) for c in range(channels)]
    values = np.stack(planes, 2) + noise.normal(0, 0.05, (height, width, channels))
    values = (values - values.min()) / (values.max() - values.min())
    return np.minimum(values * levels, levels - 1).astype(np.uint16)


def jpeg(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def oriented(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def scanlines(samples, depth):
    if depth == 16:
        rows = [row.astype(">u2").tobytes() for row in samples]
    else:
        bits = lambda row: ((row.reshape(-1, 1) >> np.arange(depth - 1, -1, -1)) & 1).astype(np.uint8)
        rows = [np.packbits(bits(row)).tobytes() for row in samples]
    return b"".join(b"\0" + row for row in rows)


def png(samples, depth, kind, chunks=b"", interlaced=False):
    """Pillow writes neither 16 bits of colour nor interlaced files."""
    height, width, _ = samples.shape
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [samples[top::down, left::right] for top, left, down, right in passes]
    data = b"".join(scanlines(part, depth) for part in parts if part.size)
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunks + chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")


def files():
    rgb = Image.fromarray(picture(43, 61).astype(np.uint8))
    yield "jpeg_420", jpeg(rgb, quality=90)
    yield "jpeg_422", jpeg(rgb, quality=80, subsampling=1)
    yield "jpeg_444", jpeg(rgb, quality=95, subsampling=0)
    yield "jpeg_progressive", jpeg(rgb, quality=75, progressive=True)
    yield "jpeg_restarts", jpeg(rgb, quality=50, restart_marker_blocks=3)
    yield "jpeg_rgb", jpeg(rgb, quality=90, keep_rgb=True)
    yield "jpeg_grey", jpeg(rgb.convert("L"))
    yield "jpeg_cmyk", jpeg(Image.fromarray(picture(43, 61, 4).astype(np.uint8), "CMYK"), quality=90)
    yield "jpeg_one_pixel", jpeg(rgb.crop((0, 0, 1, 1)))
    small = rgb.crop((0, 0, 24, 17))
    for orientation in range(0, 10):
        yield f"jpeg_exif_{orientation}", jpeg(small, exif=oriented(orientation))
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
    yield "jpeg_exif_little", jpeg(small, exif=exif)
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
    yield "jpeg_xmp_8", jpeg(small, xmp=xmp)

    palette = lambda count: chunk(b"PLTE", np.random.default_rng(1).integers(0, 256, 3 * count, dtype=np.uint8).tobytes())
    for depth in (1, 2, 4, 8, 16):
        yield f"png_grey_{depth}", png(picture(13, 19, 1, 2**depth), depth, 0)
    for depth in (1, 2, 4, 8):
        count = min(2**depth, 200)
        yield f"png_palette_{depth}", png(picture(13, 19, 1, count), depth, 3, palette(count) + chunk(b"tRNS", b"\0\x80"))
    yield "png_palette_short", png(picture(13, 19, 1, 16), 8, 3, palette(10))
    for depth in (8, 16):
        yield f"png_rgb_{depth}", png(picture(13, 19, 3, 2**depth), depth, 2)
        yield f"png_grey_alpha_{depth}", png(picture(13, 19, 2, 2**depth), depth, 4)
        yield f"png_rgb_alpha_{depth}", png(picture(13, 19, 4, 2**depth), depth, 6)
    yield "png_grey_16_dark", png(picture(13, 19, 1, 300), 16, 0)
    yield "png_rgb_transparent", png(picture(13, 19, 3), 8, 2, chunk(b"tRNS", b"\0\1\0\2\0\3"))
    for depth, kind, channels in ((1, 0, 1), (4, 3, 1), (8, 2, 3), (16, 6, 4)):
        chunks = palette(16) if kind == 3 else b""
        yield f"png_interlaced_{depth}_{kind}", png(picture(13, 19, channels, 2**depth), depth, kind, chunks, True)
    yield "png_exif_5", png(picture(13, 19), 8, 2, chunk(b"eXIf", oriented(5)[6:]))
    yield "png_xmp_3", png(picture(13, 19), 8, 2, chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp.replace(b"8", b"3")))


def resizes():
    for box, size in (
        ((0, 0, 43, 61), (17, 23)),
        ((0, 0, 43, 61), (5, 61)),
        ((0, 0, 43, 61), (43, 7)),
        ((0, 0, 43, 61), (43, 61)),
        ((0, 0, 43, 61), (70, 99)),
        ((7, 11, 30, 41), (16, 16)),
        ((42, 60, 1, 1), (9, 9)),
        ((3, 0, 40, 61), (1, 1)),
        ((0, 5, 37, 3), (12, 12)),
    ):
        yield box, size


def augmented(image):
    """torchvision's TrivialAugmentWide, by Pillow's functions."""
    affine = lambda *matrix: image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.NEAREST)
    enhancer = lambda kind: lambda m: kind(image).enhance(1 + m)
    ops = [
        (lambda m: image, [0]),
        (lambda m: affine(1, m, 0, 0, 1, 0), [0.66, -0.33]),
        (lambda m: affine(1, 0, 0, m, 1, 0), [0.66, -0.33]),
        (lambda m: affine(1, 0, -int(m), 0, 1, 0), [5.4, -17]),
        (lambda m: affine(1, 0, 0, 0, 1, -int(m)), [5.4, -17]),
        (lambda m: image.rotate(m, Image.Resampling.NEAREST), [27, -103.5]),
        (enhancer(ImageEnhance.Brightness), [0.5, -0.5]),
        (enhancer(ImageEnhance.Color), [0.5, -0.5]),
        (enhancer(ImageEnhance.Contrast), [0.5, -0.5]),
        (enhancer(ImageEnhance.Sharpness), [0.5, -0.5]),
        (lambda m: ImageOps.posterize(image, int(m)), [2, 5, 8]),
        (lambda m: ImageOps.solarize(image, m), [0, 76.5, 255]),
        (lambda m: ImageOps.autocontrast(image), [0]),
        (lambda m: ImageOps.equalize(image), [0]),
    ]
    for op, (change, magnitudes) in enumerate(ops):
        for magnitude in magnitudes:
            yield f"augment.{op}.{round(100 * magnitude)}.rgb", np.asarray(change(magnitude))


def main():
    tensors = {}
    put = lambda name, array: tensors.__setitem__(name, torch.from_numpy(np.array(array)))
    for name, file in files():
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(file))).convert("RGB")
        put(f"{name}.file", np.frombuffer(file, np.uint8))
        put(f"{name}.rgb", np.asarray(image))
    source = Image.fromarray(picture(43, 61, seed=2).astype(np.uint8))
    put("resize.in", np.asarray(source))
    for i, ((top, left, height, width), size) in enumerate(resizes()):
        part = source.crop((left, top, left + width, top + height))
        put(f"resize.{i}.box", np.array([top, left, height, width]))
        put(f"resize.{i}.size", np.array(size))
        bilinear = lambda image, *to: image.resize(to, Image.Resampling.BILINEAR)
        result = bilinear(bilinear(part, size[1], height), size[1], size[0])
        at_once = np.asarray(bilinear(part, size[1], size[0])).astype(int)
        assert np.abs(at_once - np.asarray(result)).max() <= 1
        put(f"resize.{i}.rgb", np.asarray(result))
    dim = Image.fromarray((np.asarray(source)[:24, :31] // 3 + 40).astype(np.uint8))
    put("augment.in", np.asarray(dim))
    for name, array in augmented(dim):
        put(name, array)
    save_safetensors(GOLDENS / "images.safetensors", tensors)


if __name__ == "__main__":
    main()
