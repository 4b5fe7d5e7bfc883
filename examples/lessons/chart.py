"""The picture of the ladder: GFLOP/s of each step on a logarithmic axis, beside the peaks."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
try:
    from page import style
except ImportError as error:
    sys.exit(f"lessons: {error}; Debian: apt install python3-matplotlib, and run /usr/bin/python3")


def draw(measured, path):
    rows = measured["rows"]
    labels = [f"{r['step']} {r['title']}, {r['dtype']}" + f", {r['threads']} threads" * (r["threads"] > 1) for r in rows]

    def figure(colours):
        made, ((axes,),) = style.figure(0.8 + 0.3 * len(rows))
        for y, row in enumerate(rows):
            axes.barh(y, row["gflops"], 0.8, color=style.DTYPE_COLOURS[row["dtype"]], alpha=0.4 if row["emulated"] else 1)
            axes.plot([row["peak_gflops"]] * 2, [y - 0.4, y + 0.4], color=colours["text"], lw=1.5)
            text = f" {row['gflops']:.3g}" + " (emulated)" * row["emulated"]
            beside = row["gflops"] if row["gflops"] < row["peak_gflops"] / 2 else row["peak_gflops"]
            axes.text(beside, y, text, va="center", fontsize=9, path_effects=style.halo(colours))
        axes.set_yticks(range(len(rows)), labels)
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xscale("log")
        axes.set_xlim(right=2 * max(row["peak_gflops"] for row in rows))
        axes.set_xlabel("GFLOP/s; the black lines are the peaks of as many threads")
        axes.grid(axis="x")
        return made

    picture = style.Picture("lessons", f"From three loops to the tile: {measured['cpu']}", "", figure)
    path.write_bytes(picture.png if path.suffix == ".png" else picture.light)
