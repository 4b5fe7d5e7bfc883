"""The picture of the ladders: GFLOP/s of each step on a logarithmic axis, beside the peaks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
try:
    from page import style
except ImportError as error:
    sys.exit(f"lessons: {error}; Debian: apt install python3-matplotlib, and run /usr/bin/python3")


def gemm_rows(measured):
    """(label, row) of each step"""
    for row in measured.get("rows", []):
        threads = f", {row['threads']} threads" * (row["threads"] > 1)
        yield f"{row['step']} {row['title']}, {row['dtype']}{threads}", row


def conv_rows(measured):
    """The same, of the pass that a step is about."""
    for row in measured.get("conv", {}).get("rows", []):
        if row["about"]:
            yield f"{row['step']} {row['title']}, {row['pass']}", row | {"dtype": "f32", "emulated": False}


def bars(axes, rows, colours):
    labels, rows = zip(*rows)
    for y, row in enumerate(rows):
        gflops, peak = row["gflops"], row["peak_gflops"]
        axes.barh(y, gflops, 0.8, color=style.DTYPE_COLOURS[row["dtype"]], alpha=0.4 if row["emulated"] else 1)
        axes.plot([peak, peak], [y - 0.4, y + 0.4], color=colours["text"], lw=1.5)
        beside = gflops if gflops < peak / 2 else max(gflops, peak)
        axes.text(beside, y, f" {gflops:.3g}" + " (emulated)" * row["emulated"], va="center", fontsize=9, path_effects=style.halo(colours))
    axes.set_yticks(range(len(rows)), labels)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.grid(axis="x")


def draw(measured, path):
    ladders = [rows for rows in (list(gemm_rows(measured)), list(conv_rows(measured))) if rows]
    heights = [len(rows) for rows in ladders]

    def figure(colours):
        size, ratios = (style.WIDTH, 0.8 + 0.3 * sum(heights)), {"height_ratios": heights}
        made, axes = style.pyplot.subplots(len(ladders), figsize=size, sharex=True, squeeze=False, gridspec_kw=ratios)
        for rows, (one,) in zip(ladders, axes):
            bars(one, rows, colours)
        last = axes[-1][0]
        last.set_xscale("log")
        last.set_xlim(right=2 * max(row[g] for rows in ladders for _, row in rows for g in ("gflops", "peak_gflops")))
        last.set_xlabel("GFLOP/s; the black lines are the peaks of as many threads")
        return made

    cpu = measured.get("cpu") or measured["conv"]["cpu"]
    picture = style.Picture("lessons", f"From loops to the tile: {cpu}", "", figure)
    path.write_bytes(picture.png if path.suffix == ".png" else picture.light)
