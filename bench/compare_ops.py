#!/usr/bin/env python3
"""Races quern's ops, one by one, against PyTorch's:

    python3 bench/compare_ops.py                        every op; some ten minutes
    python3 bench/compare_ops.py --quick                f32, forward; a minute or two
    python3 bench/compare_ops.py --only 'gelu|softmax'  those whose row matches, as in "softmax_1 bf16 fwd+bwd"
    python3 bench/compare_ops.py --convs bench/shapes/others.txt    the convolutions of a file, --batch images at a time

Each row is an op at a small, a middle and a large size (bench/compare/ops.py lists them), forward or forward and
backward. Both engines are one warm process each, on as many threads as there are cores, PyTorch's with tcmalloc where
that is installed. They take turns, A B A B, --rounds times, with a pause until the other's threads sleep; the ratio is
the median of the rounds': PyTorch's time ÷ quern's, so that above 1 quern is faster. Their results have to agree. The
worst ratio comes first. Ctrl-C, or the end of a `timeout`, ends the race: the rows until then are printed and, by
--json, written.
"""

import argparse
import json
import math
import re
import signal
import statistics
import sys
from pathlib import Path

from compare import machine, ops
from compare.engines import Engine, environment, tcmalloc

EARLY = 128 + signal.SIGINT  # a shell's exit status of what was interrupted


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="rows that match")
    parser.add_argument("--quick", action="store_true", help="f32 only, forward only; of --convs: channels-last only")
    parser.add_argument("--convs", type=Path, metavar="FILE", help="the convolutions of a file like bench/shapes/resnet50.txt")
    parser.add_argument("--batch", type=int, default=16, help="of --convs [%(default)s]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each engine [%(default)s]")
    parser.add_argument("--seconds", type=float, default=0.03, help="length of a turn [%(default)s]")
    parser.add_argument("--venv", type=Path, default=Path.home() / ".cache/quern/compare-venv", help="[%(default)s]")
    parser.add_argument("--python", help="an interpreter with PyTorch, instead of --venv")
    parser.add_argument("--quern", help="the program quern_op_times [built by ./dev build --preset bench]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row")
    return parser.parse_args()


def label(job):
    shapes = " ".join("×".join(map(str, s)) for s in job["shapes"])
    layout = " nhwc" if job["format"] == "channels_last" else ""
    conv = "" if "conv" not in job else " s{0}×{1} p{2}×{3} d{4}×{5} g{6}".format(*job["conv"])
    return f"{job['name']} {job['dtype']} {'fwd+bwd' if job['backward'] else 'fwd'}{layout} {shapes}{conv}"


def race(job, quern, torch, options):
    """The row with both engines' seconds, and whether their results agree."""
    a, b = quern.ask(**job), torch.ask(**job)
    tolerance = 0.02 if job["dtype"] == "bf16" else 1e-3
    wrong = job["name"] not in ops.UNLIKE and not math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-3)
    turns = [[engine.time(options.seconds) for engine in (quern, torch)] for _ in range(options.rounds)]
    mine, theirs = (statistics.median(times) for times in zip(*turns))
    ratio = statistics.median(b / a for a, b in turns)
    return {"row": label(job), "quern": mine, "pytorch": theirs, "ratio": ratio, "wrong": [a, b] if wrong else None}


def main():
    options = parse_arguments()
    python = options.python or machine.interpreter(options.venv)
    program = options.quern or machine.build("quern_op_times", "bench", "bench")
    env = environment(len(machine.cores()))
    malloc = tcmalloc()
    quern = Engine([program], env)
    torch = Engine([python, "-W", "ignore", ops.__file__], env | ({"LD_PRELOAD": malloc} if malloc else {}))
    print(f"quern {machine.commit()}, PyTorch {torch.read()} with {malloc or 'the malloc of the C library'}; ", end="")
    print(f"{machine.describe()['cpu']}, {env['OMP_NUM_THREADS']} threads", flush=True)

    rows = []
    jobs = ops.convolutions(options.convs, options.batch, options.quick) if options.convs else ops.jobs(options.quick)
    jobs = [job for job in jobs if options.only.search(label(job))]
    if not jobs:
        sys.exit("compare_ops: no row matches")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for job in jobs:
            rows.append(race(job, quern, torch, options))
            if sys.stderr.isatty():
                print(f"\r{len(rows)}: {rows[-1]['row']:100.100}", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"\nended after {len(rows)} of {len(jobs)} rows", file=sys.stderr)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if not rows:
        sys.exit(EARLY)

    rows.sort(key=lambda row: row["ratio"])
    print(f"\n{'ratio':>6} {'quern µs':>10} {'PyTorch µs':>10}  op")
    for row in rows:
        wrong = "" if row["wrong"] is None else "  RESULTS DIFFER: {:.6g}, PyTorch {:.6g}".format(*row["wrong"])
        print(f"{row['ratio']:6.2f} {1e6 * row['quern']:10.1f} {1e6 * row['pytorch']:10.1f}  {row['row']}{wrong}")
    below = sum(row["ratio"] < 0.9 for row in rows)
    mean = statistics.geometric_mean(row["ratio"] for row in rows)
    print(f"\n{len(rows)} rows, {below} below 0.9, geometric mean {mean:.2f}")
    sys.exit(EARLY if len(rows) < len(jobs) else any(row["wrong"] for row in rows))


if __name__ == "__main__":
    main()
