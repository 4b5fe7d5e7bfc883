#!/usr/bin/env python3
"""Runs the protocols by which articles time CPUs on ResNet-50, and prints their tables:

    ./dev tables training  --price-per-hour 0.36      hours; --steps 31 --batch 16 makes it minutes, and the header says so
    ./dev tables inference --price-per-hour 0.36 --against v1.0

training    1,000,000 fake images, each drawn when it is due by workers beside the step; SGD at 1e-3 without momentum and
            decay; steps 12 to 101 are timed, waiting for data included. Images/s are images ÷ time. Two tables: every
            batch in f32 (channels first), bf16 (channels first), bf16 channels-last, each fused and op by op, with two
            workers; and every number of workers, with the smallest batch in bf16 channels-last.
inference   batch 1 and 16 in f32, medium (f32 multiplied in bf16) and bf16, channels-last, images at hand; images/s by the
            median step, p90 of all steps.

With --against each row has a second line of that commit, which takes turns with this one. Runs are lines of the file
--out, as a sweep's; the same command goes on where it was stopped.
"""

import argparse
import signal
import sys
from pathlib import Path

from compare import machine
from sweeps import arguments, figures, points, turns
from sweeps.journal import Journal

TRAINING_OPTIONS = ["--dummy-size", "1000000", "--lr", "0.001", "--momentum", "0", "--wd", "0"]
TRAINING_PRECISIONS = (("f32", "nchw"), ("bf16", "nchw"), ("bf16", "nhwc"))
UNTIMED = 11  # steps of training; 12 to 101 are timed
WORKERS = 2  # where they are not what is compared


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("protocol", choices=("training", "inference"))
    parser.add_argument("--batch", type=arguments.positives, metavar="A,B", help="[training: 16,32,64,128; inference: 1,16]")
    parser.add_argument("--workers", type=arguments.some_of(range(17)), metavar="A,B", default=list(range(9)), help="[0 to 8]")
    parser.add_argument("--steps", type=arguments.positive, help="the last step [training: 101; inference: 102]")
    parser.add_argument("--rounds", type=arguments.positive, help="turns of each row [training: 1; inference: 3]")
    cores = len(machine.cores())
    parser.add_argument("--threads", type=int, choices=range(1, cores + 1), default=cores, help="[one a core]")
    parser.add_argument("--arch", default="resnet50", help="[%(default)s]")
    parser.add_argument("--image-size", type=arguments.positive, default=224, help="[%(default)s]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="[build/tables-PROTOCOL.jsonl]")
    arguments.add_common(parser)
    options = parser.parse_args()
    training = options.protocol == "training"
    options.changed = changes(options, training)
    options.batch = options.batch or ([16, 32, 64, 128] if training else [1, 16])
    options.steps = options.steps or (101 if training else 102)
    options.rounds = options.rounds or (1 if training else 3)
    options.out = options.out or arguments.default_out(f"tables-{options.protocol}")
    least = (UNTIMED if training else points.DEFAULTS["warm_up"]) + 1
    if options.steps < least:
        parser.error(f"--steps: expected at least {least}, the first that is timed, got {options.steps}")
    return options, parser


def changes(options, training):
    """What of the protocol the options change, in words."""
    given = {"--batch": options.batch, "--steps": options.steps and [options.steps]}
    given |= {"--arch": options.arch != "resnet50" and [options.arch]}
    given |= {"--image-size": options.image_size != 224 and [options.image_size]}
    given |= {"--workers": training and options.workers != list(range(9)) and options.workers}
    return [f"{name} {','.join(map(str, values))}" for name, values in given.items() if values]


def common(options, commit):
    fields = {"arch": options.arch, "image_size": options.image_size, "threads": options.threads}
    return fields | {"steps": options.steps, "commit": commit}


def training_tables(options, commit):
    """[(title, [(cells, point)])]"""
    same = common(options, commit) | {"mode": "train", "warm_up": UNTIMED, "options": TRAINING_OPTIONS}
    batches = [
        ((dtype, layout, batch, "fused" if fused else "op by op"),
         points.make(**same, batch=batch, dtype=dtype, layout=layout, fused=fused, workers=WORKERS))
        for dtype, layout in TRAINING_PRECISIONS
        for fused in (True, False)
        for batch in options.batch
    ]  # fmt: skip
    workers = [
        (("bf16", "nhwc", options.batch[0], n),
         points.make(**same, batch=options.batch[0], dtype="bf16", layout="nhwc", workers=n))
        for n in options.workers
    ]  # fmt: skip
    return [(("dtype", "layout", "batch", "blocks"), batches), (("dtype", "layout", "batch", "workers"), workers)]


def inference_tables(options, commit):
    same = common(options, commit) | {"mode": "infer", "layout": "nhwc"}
    rows = [
        ((batch, dtype), points.make(**same, batch=batch, dtype=dtype))
        for batch in options.batch
        for dtype in ("f32", "medium", "bf16")
    ]
    return [(("batch", "dtype"), rows)]


def training_figures(f, price):
    cost = figures.price(price, f["throughput"]) if price else None
    return [f"{f['throughput']:.2f}", f"{f['mean']:.1f}", f"{cost['thousand_images_per_dollar']:.1f}" if cost else "–"]


def inference_figures(f, price):
    cost = f"{f['dollars_per_million_images']:.2f}" if price else "–"
    return [f"{f['images_per_second']:.2f}", f"{f['p50']:.2f}", f"{f['p90']:.2f}", cost]


COLUMNS = {
    "training": (["images/s", "mean ms", "thousand images per $"], training_figures),
    "inference": (["images/s", "p50 ms", "p90 ms", "$ per million images"], inference_figures),
}


def markdown(journal, names, rows, commits, options):
    columns, cells_of = COLUMNS[options.protocol]
    several = ["commit"] if len(commits) > 1 else []
    lines = ["| " + " | ".join([*names, *several, *columns]) + " |", "|" + "---|" * (len(names) + len(several) + len(columns))]
    for cells, point in rows:
        for commit in commits:
            key = points.key(point | {"commit": commit})
            if key in journal.rounds:
                f = figures.of(list(journal.rounds[key].values()), options.price_per_hour)
                values = cells_of(f, options.price_per_hour)
            else:
                why = journal.failed[key]["why"] if key in journal.failed else "not measured"
                values = [why, *["–"] * (len(columns) - 1)]
            lines.append("| " + " | ".join([*map(str, cells), *([commit] if several else []), *values]) + " |")
    return "\n".join(lines)


def header(options, commits, here):
    if options.protocol == "training":
        what = f"1,000,000 fake images drawn by {WORKERS} workers unless a column tells, SGD 1e-3"
        what += f", steps {UNTIMED + 1} to {options.steps}"
    else:
        what = f"steps 3 to {options.steps}"
    price = f"; ${options.price_per_hour:g} an hour" if options.price_per_hour else "; no --price-per-hour, no prices"
    changed = f"\n\nNot the whole protocol: {'; '.join(options.changed)}." if options.changed else ""
    return (
        f"{options.protocol} of {options.arch}: {what}; {options.threads} threads, {options.rounds} round(s){price};"
        f" {here['cpu']}, {here['cores']} cores; commit {', '.join(commits)}; {here['time'][:10]}.{changed}"
    )


def main():
    options, parser = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    journal, here = Journal(options.out), turns.this_machine(options.price_per_hour)
    programs = arguments.programs(options, parser, journal)
    for sentence in journal.passed_over:
        print(f"tables: {sentence}", file=sys.stderr)
    make = training_tables if options.protocol == "training" else inference_tables
    tables = make(options, next(iter(programs)))
    wanted = {points.key(p): p for _, rows in tables for _, point in rows for p in (point | {"commit": c} for c in programs)}
    try:
        turns.take(journal, list(wanted.values()), programs, options.rounds, 0, here)
    except KeyboardInterrupt:
        sys.exit(f"\ntables: interrupted; the same command goes on with {options.out}")
    print(header(options, list(programs), here))
    for names, rows in tables:
        print(f"\n{markdown(journal, names, rows, list(programs), options)}")
    print(f"\nEvery step is in {options.out}")


if __name__ == "__main__":
    main()
