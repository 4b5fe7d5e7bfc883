"""Makes a folder of pictures to train on: python3 examples/resnet50/make_pictures.py DIR

DIR/train/CLASS/N.png and DIR/val/CLASS/N.png: discs, rings, squares and crosses of random size, place and colours
in noise, 48×48 pixels. Needs nothing but Python.
"""

import pathlib
import random
import struct
import sys
import zlib

SIZE = 48
SHAPES = {
    "cross": lambda x, y: abs(x) < 0.3 and abs(y) < 1 or abs(y) < 0.3 and abs(x) < 1,
    "disc": lambda x, y: x * x + y * y < 1,
    "ring": lambda x, y: 0.4 < x * x + y * y < 1,
    "square": lambda x, y: max(abs(x), abs(y)) < 0.9,
}


def draw(shape, dice):
    radius = dice.uniform(9, 17)
    cx, cy = (dice.uniform(radius, SIZE - radius) for _ in "xy")
    ink, paper = ([dice.uniform(20, 235) for _ in "rgb"] for _ in "ab")
    while sum(abs(a - b) for a, b in zip(ink, paper)) < 150:
        ink = [dice.uniform(20, 235) for _ in "rgb"]
    rows = []
    for y in range(SIZE):
        row = bytearray(b"\0")  # no filter
        for x in range(SIZE):
            color = ink if shape((x - cx) / radius, (y - cy) / radius) else paper
            row += bytes(int(c + dice.uniform(-20, 20)) for c in color)
        rows.append(bytes(row))
    return b"".join(rows)


def png(rows):
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    dice = random.Random(0)
    for part, count in (("train", 400), ("val", 100)):
        for name, shape in SHAPES.items():
            folder = pathlib.Path(sys.argv[1], part, name)
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                (folder / f"{i}.png").write_bytes(png(draw(shape, dice)))


if __name__ == "__main__":
    main()
