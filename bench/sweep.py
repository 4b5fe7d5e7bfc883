#!/usr/bin/env python3
"""Times quern's networks on every combination of what is named:

    ./dev sweep                                                   ResNet-50, inference, f32 and bf16, channels-last, batch 16
    ./dev sweep --batch 16,32,64,128 --layout nchw,nhwc --dtype f32,medium,bf16 --threads 1,2 --mode train,infer
    ./dev sweep --isa avx2,avx512,best --batch 1 --out build/isa.jsonl
    ./dev report build/sweep.jsonl                                a page of it

Points take turns, A B C A B C, --rounds times; a turn is a process of some steps, of which the first two do not count.
Each is a line of JSON in the file --out, written before the next begins: the same command goes on where it was stopped,
also by kill -9, and more of the same (--rounds, other values) comes to what is there. Figures are of the medians of the
rounds' medians; in the file is every step. bench/README.md tells how to read them.
"""

import argparse
import itertools
import signal
import sys
from pathlib import Path

from compare import machine
from sweeps import arguments, figures, points, turns
from sweeps.journal import Journal


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(machine.cores())

    def several(name, choices, default):
        shown = default if isinstance(default, str) else ",".join(map(str, default))
        parser.add_argument(name, type=arguments.some_of(choices), metavar="A,B", default=default,
                            help=f"of {','.join(map(str, choices))} [{shown}]")  # fmt: skip

    several("--mode", ("train", "infer"), ["infer"])
    parser.add_argument("--arch", type=lambda text: text.split(","), metavar="A,B", default=["resnet50"], help="[resnet50]")
    parser.add_argument("--batch", type=arguments.positives, metavar="A,B", default=[16], help="images a step [16]")
    several("--dtype", points.DTYPES, ["f32", "bf16"])
    several("--layout", points.LAYOUTS, ["nhwc"])
    several("--threads", range(1, cores + 1), [cores])
    several("--isa", (*points.ISAS, "best"), ["best"])
    several("--fuse", ("fused", "op_by_op"), ["fused"])
    parser.add_argument("--image-size", type=arguments.positive, default=224, help="[%(default)s]")
    parser.add_argument("--options", type=str.split, default=[], metavar="'A B'", help="more for resnet50, as in ='--no-drop'")
    parser.add_argument("--rounds", type=arguments.positive, default=3, help="turns of each point [%(default)s]")
    parser.add_argument("--seconds", type=arguments.amount, default=2, help="length of a turn [%(default)s], in 8 to 200 steps")
    parser.add_argument("--steps", type=arguments.positive, help="timed steps a turn, instead")
    parser.add_argument("--out", type=Path, default=arguments.default_out("sweep"), metavar="FILE", help="[build/sweep.jsonl]")
    arguments.add_common(parser)
    return parser.parse_args(), parser


def wanted(options, commits):
    axes = {
        "mode": options.mode,
        "arch": options.arch,
        "batch": options.batch,
        "dtype": options.dtype,
        "layout": options.layout,
        "threads": options.threads,
        "isa": [None if isa == "best" else isa for isa in options.isa],
        "fused": [word == "fused" for word in options.fuse],
        "commit": commits,
    }
    same = {"image_size": [options.image_size], "options": [options.options]}
    same["steps"] = [options.steps and options.steps + points.DEFAULTS["warm_up"]]
    return points.product(**axes, **same)


def print_table(journal, chosen, price):
    """A row a point, in the order of the command."""
    rows = [("", "images/s", "by round", "p50 ms", "p90 ms", "p99 ms", "of", "MiB", "$ per million" if price else "")]
    for point, name in zip(chosen, points.labels(chosen)):
        key = points.key(point)
        if key not in journal.rounds:
            rows.append((name, journal.failed[key]["why"] if key in journal.failed else "not measured"))
            continue
        f = figures.of([journal.rounds[key][n] for n in sorted(journal.rounds[key])], price)
        by_round = f"{min(f['by_round']):.1f}–{max(f['by_round']):.1f}"
        cells = [name, f"{f['images_per_second']:.1f}", by_round, *(f"{f[p]:.2f}" for p in ("p50", "p90", "p99"))]
        cost = f"{f['dollars_per_million_images']:.2f}" if price else ""
        rows.append((*cells, str(f["samples"]), f"{f['peak_mib']:.0f}", cost))
    widths = [max(map(len, column)) for column in itertools.zip_longest(*(r for r in rows if len(r) > 2), fillvalue="")]
    widths[0] = max(len(row[0]) for row in rows)
    for row in rows:
        print("  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip())


def main():
    options, parser = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    journal = Journal(options.out)
    programs = arguments.programs(options, parser, journal)
    for sentence in journal.passed_over:
        print(f"sweep: {sentence}", file=sys.stderr)
    chosen = wanted(options, list(programs))
    try:
        turns.take(journal, chosen, programs, options.rounds, options.seconds, turns.this_machine(options.price_per_hour))
    except KeyboardInterrupt:
        sys.exit(f"\nsweep: interrupted; the same command goes on with {options.out}")
    print_table(journal, chosen, options.price_per_hour)
    print(f"\nEvery step is in {options.out}; a page of it: ./dev report {options.out}")


if __name__ == "__main__":
    main()
