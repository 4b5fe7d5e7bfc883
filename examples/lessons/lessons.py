#!/usr/bin/env python3
"""Times the steps of the lessons: a product of matrices by each, and ResNet-50 trained with it.

    ./dev lessons                    all steps: GFLOP/s, share of the peak, factor over the step before, images/s
    ./dev lessons 4                  one, and what came before it
    ./dev lessons --chart FILE.svg   and a picture (.svg, .png; Debian: python3-matplotlib)
    ./dev lessons --json FILE        and all figures
    ./dev lessons --keep             writes measured.json here, and the tables of the pages

The peak is what this machine's fastest multiplications reach, measured first. A row with threads has the peak of as many.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import pages  # noqa: E402

NETWORK = ["--channels-last", "--image-size", "64", "-b", "4", "--steps", "2"]


def step(text):
    if text not in map(str, range(10)):
        raise argparse.ArgumentTypeError(f"expected a step, 0 to 9, got {text!r}")
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=step, nargs="*", metavar="N", help="only these, and those before them")
    parser.add_argument("--programs", type=Path, default=HERE.parents[1] / "build/release/examples", metavar="DIR",
                        help="where lessons/quern_lessons and resnet50/resnet50 were built")  # fmt: skip
    parser.add_argument("--size", type=int, nargs=3, default=[512, 2048, 2048], metavar=("M", "N", "K"))
    parser.add_argument("--rounds", type=int, default=5, metavar="R", help="how often the steps take turns; medians count [5]")
    parser.add_argument("--no-network", action="store_true", help="only the product")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--chart", type=Path, metavar="FILE")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    if options.keep and (options.steps or options.no_network):
        parser.error("--keep: expected all steps, with the network")
    return options


def measure_products(options):
    steps = {n for asked in options.steps for n in (asked - 1, asked) if n >= 0}
    command = [options.programs / "lessons/quern_lessons", "--size", *map(str, options.size), "--rounds", str(options.rounds)]
    for n in sorted(steps):
        command += ["--step", str(n)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def images_per_second(options, row):
    """Of the second step of training; the first one allocates memory."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "train.json"
        command = [options.programs / "resnet50/resnet50", "train", *NETWORK, "--json", report]
        command += ["--threads", str(row["threads"])] + ["--amp"] * (row["dtype"] == "bf16")
        environment = os.environ | {"QUERN_KERNEL": row["name"]}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        train = json.loads(report.read_text())
    return 1000 * train["batch_size"] / train["step_ms"][-1]


def main():
    options = parse_arguments()
    measured = measure_products(options)
    for row in measured["rows"]:
        if not options.no_network:
            print(f"training ResNet-50 with {row['name']}, {row['dtype']} …", end="\r", file=sys.stderr)
            row["images_per_second"] = images_per_second(options, row)
    print(" " * 60, end="\r", file=sys.stderr)
    print(pages.headline(measured))
    print()
    print(pages.table(measured))
    for missing in measured["missing"]:
        print(f"step {missing['step']}, {missing['title']}: left out: {missing['reason']}")
    if options.json:
        options.json.write_text(json.dumps(measured, indent=2) + "\n")
    if options.chart:
        import chart

        chart.draw(measured, options.chart)
    if options.keep:
        pages.MEASURED.write_text(json.dumps(measured, indent=2) + "\n")
        pages.write()


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"lessons: {error}")
