#!/usr/bin/env python3
"""Times the steps of the lessons: a product of matrices or a convolution by each, and ResNet-50 trained with it; a training step.

    ./dev lessons                    all steps: GFLOP/s, share of the peak, factor over the step before, images/s
    ./dev lessons 4                  one of GEMM, and what came before it
    ./dev lessons conv conv4         all of convolution, and one
    ./dev lessons step               what a training step moves, keeps and takes, by the steps of its lesson
    ./dev lessons --chart FILE.svg   and a picture (.svg, .png; Debian: python3-matplotlib)
    ./dev lessons --json FILE        and all figures of these two ladders
    ./dev lessons --keep             writes them and what the step printed here, and into the pages; conv --keep: only convolution's

The peak is what this machine's fastest multiplications reach, measured first. A row with threads has the peak of as many.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import pages  # noqa: E402

STEPS = {"gemm": 9, "conv": 8, "step": 0}  # the last of each; those of the training step are measured at once
NETWORK = ["--channels-last", "--image-size", "64", "-b", "4"]


def step(text):
    """("gemm", 4), ("conv", 4), ("conv", None): all, ("step", None)"""
    found = re.fullmatch(r"(conv)?(\d|(?<=conv))|(step)", text)
    ladder, number = (found[1] or found[3] or "gemm", found[2]) if found else (None, "")
    if ladder is None or (number and int(number) > STEPS[ladder]):
        raise argparse.ArgumentTypeError(f"expected a step, 0 to 9, conv0 to conv8, conv or step, got {text!r}")
    return ladder, int(number) if number else None


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=step, nargs="*", metavar="N", help="only these (4: of GEMM, conv4: of convolution), and those before them")
    parser.add_argument("--programs", type=Path, default=HERE.parents[1] / "build/release/examples", metavar="DIR",
                        help="where lessons/quern_lessons and resnet50/resnet50 were built")  # fmt: skip
    parser.add_argument("--size", type=int, nargs=3, default=[512, 2048, 2048], metavar=("M", "N", "K"))
    parser.add_argument("--layer", type=int, nargs=3, default=[4, 256, 14], metavar=("IMAGES", "CHANNELS", "SIZE"))
    parser.add_argument("--images", type=int, default=64, metavar="N", help="of a training step [64]")
    parser.add_argument("--rounds", type=int, default=5, metavar="R", help="how often the steps take turns; medians count [5]")
    parser.add_argument("--seconds", type=float, default=0.2, metavar="S", help="length of a turn [0.2]")
    parser.add_argument("--no-network", action="store_true", help="only the product")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--chart", type=Path, metavar="FILE")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if options.chart and not (wanted(options, "gemm") or wanted(options, "conv")):
        parser.error("--chart: expected steps of GEMM or of convolution, which it draws")
    if options.keep and (options.no_network or any(n is not None for _, n in options.steps)):
        parser.error("--keep: expected all steps, with the network")
    return options


def wanted(options, ladder):
    """The steps of it that were asked for, and the one before each."""
    every = set(range(STEPS[ladder] + 1))
    if not options.steps:
        return every
    asked = [n for which, n in options.steps if which == ladder]
    return every if None in asked else {n for last in asked for n in (last - 1, last) if n >= 0}


def measure(options, ladder, program, sizes):
    command = [options.programs / "lessons" / program, *map(str, sizes), "--rounds", str(options.rounds), "--seconds", str(options.seconds)]
    for n in sorted(wanted(options, ladder)):
        command += ["--step", str(n)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def images_per_second(options, name, threads, amp=False, steps=2):
    """Of the fastest step of training but the first, which allocates memory."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "train.json"
        command = [options.programs / "resnet50/resnet50", "train", *NETWORK, "--steps", str(steps), "--json", report]
        command += ["--threads", str(threads)] + ["--amp"] * amp
        environment = os.environ | {"QUERN_KERNEL": name}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        train = json.loads(report.read_text())
    return 1000 * train["batch_size"] / min(train["step_ms"][1:])


def progress(name):
    print(f"training ResNet-50 with {name or 'the library'} …".ljust(60), end="\r", file=sys.stderr)


def print_missing(measured):
    for missing in measured["missing"]:
        print(f"step {missing['step']}, {missing['title']}: left out: {missing['reason']}")


def lesson_on_gemm(options):
    measured = measure(options, "gemm", "quern_lessons", ["--size", *options.size])
    for row in measured["rows"]:
        if not options.no_network:
            progress(row["name"])
            row["images_per_second"] = images_per_second(options, row["name"], row["threads"], row["dtype"] == "bf16")
    print(f"{'':60}", end="\r", file=sys.stderr)
    print(f"{pages.headline(measured)}\n\n{pages.table(measured)}")
    print_missing(measured)
    return measured


def lesson_on_convolution(options):
    measured = measure(options, "conv", "quern_conv_lessons", ["--layer", *options.layer])
    measured["network"] = {}
    for row in measured["rows"]:
        if row["pass"] == "forward" and not options.no_network:
            progress(row["name"])
            steps = 2 if row["seconds"] > 0.2 else 5
            measured["network"][row["name"]] = images_per_second(options, row["name"], row["threads"], steps=steps)
    print(f"{'':60}", end="\r", file=sys.stderr)
    print(f"\n{pages.conv_headline(measured)}\n\n{pages.conv_table(measured)}")
    print_missing(measured)
    return measured


def lesson_on_the_step(options):
    """What it printed. Of many rounds: some times are near each other."""
    command = [options.programs / "lessons/quern_step", "--images", str(options.images), "--rounds", str(3 * options.rounds)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(f"\nA training step on {options.images} images\n\n{printed}", end="")
    return printed


def main():
    options = parse_arguments()
    measured = lesson_on_gemm(options) if wanted(options, "gemm") else {}
    if wanted(options, "conv"):
        measured["conv"] = lesson_on_convolution(options)
    printed = lesson_on_the_step(options) if wanted(options, "step") else None
    if options.json:
        options.json.write_text(json.dumps(measured, indent=2) + "\n")
    if options.chart:
        import chart

        chart.draw(measured, options.chart)
    if options.keep:
        kept = json.loads(pages.MEASURED.read_text()) | measured
        pages.MEASURED.write_text(json.dumps(kept, indent=2) + "\n")
        if printed:
            (HERE / "step/printed.txt").write_text(printed)
        pages.write()


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"lessons: {error}")
