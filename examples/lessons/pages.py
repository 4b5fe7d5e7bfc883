#!/usr/bin/env python3
"""What the pages of the lessons have from elsewhere: code, cut out of the sources, and tables of measured.json.

    pages.py            writes both into the pages
    pages.py --check    tells where a page differs from that, status 1

In a page, `<!-- cut FILE: MARK -->` begins what stands in FILE between `// [MARK]` and `// [end]`, `<!-- table FIRST LAST -->`
the measured rows of these steps of GEMM, `<!-- conv FIRST LAST -->` of convolution, and `<!-- end -->` ends any of them.
"""

import json
import re
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
MEASURED = HERE / "measured.json"
BLOCK = re.compile(r"(<!-- (?:cut (?P<file>[^:\n]+): (?P<mark>[^\n]+?)|(?P<ladder>table|conv) (?P<first>\d+) (?P<last>\d+)) -->\n)(?P<body>.*?)(<!-- end -->)", re.S)


def all_pages():
    return sorted(HERE.glob("**/*.md"))


# `<!-- printed FILE: N -->` begins paragraph N of what a program printed, which is kept in FILE.
PRINTED = re.compile(r"(<!-- printed (?P<file>[^:\n]+): (?P<paragraph>\d+) -->\n).*?(?=<!-- end -->)", re.S)


def cut(source, mark):
    """The lines of a source between `// [mark]` and `// [end]`."""
    found = re.search(rf"^ *// \[{re.escape(mark)}\]\n(.*?)^ *// \[end\]$", source.read_text(), re.M | re.S)
    if not found:
        raise ValueError(f"{source}: expected a line // [{mark}] and a line // [end] after it")
    return textwrap.dedent(found[1]).strip("\n")


def previous(rows, row):
    """The row that a step's factor is over: the step before, in the same dtype where it has that; no emulated one."""
    earlier = [r for r in rows if r["step"] < row["step"] and not r["emulated"]]
    same = [r for r in earlier if r["dtype"] == row["dtype"]]
    return (same or earlier or [None])[-1]


def factor(rows, row):
    before = previous(rows, row)
    return None if before is None or row["emulated"] else row["gflops"] / before["gflops"]


def headline(measured):
    return (f"{measured['cpu']}, up to {measured['isa']}; C[{measured['m']}×{measured['n']}] += A[{measured['m']}×{measured['k']}]·"
            f"B[{measured['k']}×{measured['n']}]; ResNet-50 trained on 4 images of 64×64.")  # fmt: skip


def table(measured, first=0, last=99):
    rows = measured["rows"]
    lines = ["| step | | threads | GFLOP/s | of the peak | over the step before | ResNet-50, images/s |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        if not first <= row["step"] <= last:
            continue
        times = factor(rows, row)
        images = row.get("images_per_second")
        lines.append("| " + " | ".join([
            f"{row['step']} {row['title']}",
            row["dtype"],
            str(row["threads"]),
            f"{row['gflops']:.2f}" if row["gflops"] < 10 else f"{row['gflops']:.0f}",
            "emulated" if row["emulated"] else f"{100 * row['gflops'] / row['peak_gflops']:.1f}%",
            "" if times is None else f"{times:.2f}×" if times < 10 else f"{times:.0f}×",
            "" if images is None else f"{images:.2f}" if images < 10 else f"{images:.0f}",
        ]) + " |")  # fmt: skip
    return "\n".join(lines)


def conv_headline(conv):
    return (f"{conv['cpu']}, up to {conv['isa']}, one thread, f32; 3×3 filters, {conv['channels']} channels, "
            f"{conv['images']} images of {conv['size']}×{conv['size']}; ResNet-50 trained on 4 images of 64×64.")  # fmt: skip


def conv_factor(rows, row):
    """Of a pass, over the step before that was measured."""
    before = [r for r in rows if r["step"] < row["step"] and r["pass"] == row["pass"]]
    return row["gflops"] / before[-1]["gflops"] if before else None


def conv_table(conv, first=0, last=99):
    """A row a step; its factor is that of the pass that it is about."""
    lines = ["| step | forward, GFLOP/s | of the peak | dgrad, stride 2 | wgrad | over the step before | ResNet-50, images/s |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for step in sorted({row["step"] for row in conv["rows"]}):
        if not first <= step <= last:
            continue
        passes = {row["pass"]: row for row in conv["rows"] if row["step"] == step}
        about = next(row for row in passes.values() if row["about"])
        times = conv_factor(conv["rows"], about)
        images = conv.get("network", {}).get(about["name"])
        gflops = [f"{passes[p]['gflops']:.{1 if passes[p]['gflops'] < 10 else 0}f}" for p in ("forward", "dgrad", "wgrad")]
        lines.append("| " + " | ".join([
            f"{step} {about['title']}",
            gflops[0],
            f"{100 * passes['forward']['gflops'] / about['peak_gflops']:.1f}%",
            *gflops[1:],
            "" if times is None else f"{times:.2f}×" if times < 10 else f"{times:.0f}×",
            "" if images is None else f"{images:.2f}" if images < 10 else f"{images:.0f}",
        ]) + " |")  # fmt: skip
    return "\n".join(lines)


def filled(page):
    """The page with its code and tables as they are to be."""

    def fill(found):
        if found["file"]:
            body = f"```cpp\n{cut(page.parent / found['file'], found['mark'])}\n```\n"
        else:
            measured = json.loads(MEASURED.read_text())
            steps = int(found["first"]), int(found["last"])
            if found["ladder"] == "conv":
                body = f"{conv_headline(measured['conv'])}\n\n{conv_table(measured['conv'], *steps)}\n"
            else:
                body = f"{headline(measured)}\n\n{table(measured, *steps)}\n"
        return found[1] + body + "<!-- end -->"

    def printed(found):
        paragraphs = (page.parent / found["file"]).read_text().rstrip().split("\n\n")
        return f"{found[1]}```\n{paragraphs[int(found['paragraph'])]}\n```\n"

    return PRINTED.sub(printed, BLOCK.sub(fill, page.read_text()))


def write():
    for page in all_pages():
        page.write_text(filled(page))


def check():
    """The pages that are not as they are to be."""
    return [page for page in all_pages() if page.read_text() != filled(page)]


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        wrong = check()
        if wrong:
            sys.exit("\n".join(f"{page}: not what its sources and measured.json make of it; run {__file__}" for page in wrong))
    else:
        write()
