#!/usr/bin/env python3
"""Races a network of quern, ResNet-50 unless told otherwise, against PyTorch, and in inference against OpenVINO and ONNX Runtime too:

    python3 bench/compare_pytorch.py                    training at batch 16, inference at 16 and 1; a quarter of an hour
    python3 bench/compare_pytorch.py --full             every mode, dtype, layout, batch and number of threads; hours
    python3 bench/compare_pytorch.py --mode train --batch 64 --json build/train.json

It builds quern and makes a virtual environment with the other engines, unless told where they are. A row of the
table is one problem. All its engines have the same weights and the same batch, and quern's first losses (training) or
logits (inference) have to agree with theirs. They take turns, A B C A B C ..., --rounds times; a turn is some steps,
all of them timed by the engine's own clock:

    training    zero the gradients, forward, cross-entropy, backward, SGD with momentum and weight decay, the loss
                read as a number; bf16 is autocast (--amp); the batch is at hand, in the layout of the row
    inference   forward, from images at hand to logits; quern's step includes the loss, some microseconds

An engine's time is the median of its rounds' medians; the ratio is that of samples a second, quern's ÷ those of the
best peer, the fastest of the others; above 1 quern is faster. The rivals keep their process from turn to turn, so
that nothing is compiled twice, take one step that is not timed in each turn, and wait in a read between turns (what
they use of the CPU meanwhile is in the JSON). quern starts afresh each turn and its first three steps do not count.
The rivals allocate by tcmalloc where it is installed (Debian: libtcmalloc-minimal4); the line above the table tells.
Every engine is kept to the same CPUs, one a core; PyTorch's and quern's threads are bound to one each. Memory
is the most that was resident: quern's from its start, a rival's from its first timed step on, without what compiling
took. Rivals that do not fit into memory together are measured one after the other, each in turn with quern.
"""

import argparse
import datetime
import itertools
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from compare import machine, table, table_rows
from compare.engines import Failed, Worker, tcmalloc
from compare.rows import VARIANTS, measure
from sweeps.arguments import amount, positive, positives, some_of
from sweeps.progress import Progress

HOME = Path.home() / ".cache" / "quern"


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def several(name, choices, default):
        shown = ",".join(map(str, choices))
        parser.add_argument(name, type=some_of(choices), metavar="A,B", default=default, help=f"of {shown}")

    parser.add_argument("--full", action="store_true", help="all of the following that are not named")
    several("--mode", ("train", "infer"), None)
    several("--dtype", ("f32", "bf16"), None)
    several("--layout", ("channels_last", "contiguous"), None)
    several("--batch", (1, 2, 4, 8, 16, 32, 64, 128, 256), None)
    several("--threads", (*range(1, len(machine.cores()) + 1), "all"), None)
    several("--variants", VARIANTS, list(VARIANTS))
    parser.add_argument("--rounds", type=positive, default=5, help="turns of each engine [%(default)s]")
    parser.add_argument("--steps", type=positive, help="timed steps a turn [as many as quern does in --seconds, 8 to 200]")
    parser.add_argument("--seconds", type=amount, default=2, help="length of a turn [%(default)s]")
    parser.add_argument("--model", "--arch", dest="arch", default="resnet50", help="of nn/network.h [%(default)s]")
    parser.add_argument("--image-size", type=positive, default=224)
    parser.add_argument("--rows", action="store_true", help="no network: rows out of a table and into it, and nothing else")
    parser.add_argument("--tables", type=positives, metavar="N,N", default=[1_000_000], help="rows of those that --rows trains [1000000]; 10 million take 16 GB")
    parser.add_argument("--venv", type=Path, default=HOME / "compare-venv", help="made there [%(default)s]")
    parser.add_argument("--python", help="an interpreter with the other engines, instead of --venv")
    parser.add_argument("--quern", help="the program resnet50, of --rows quern_op_times [built by ./dev build]")
    parser.add_argument("--quern-options", type=str.split, default=[], metavar="'A B'", help="as in ='--no-fuse'")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure, after each row")
    parser.add_argument("--update-readme", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    for program in (options.python, options.quern):
        if program and not shutil.which(program):
            parser.error(f"expected a program, got {program}")
    options.cache = HOME / "inductor"
    return options


def problems(options):
    """The rows, as dictionaries."""
    count = len(machine.cores())
    full = options.full
    for mode in options.mode or ("train", "infer"):
        axes = {
            "dtype": options.dtype or ("f32", "bf16"),
            "layout": options.layout or (("channels_last", "contiguous") if full else ("channels_last",)),
            "batch": options.batch or ((1, 16, 64, 128) if full else {"train": (16,), "infer": (16, 1)}[mode]),
            "threads": options.threads or ((1, "all") if full else ("all",)),
        }
        seen = []
        for values in itertools.product(*axes.values()):
            row = {"mode": mode, **dict(zip(axes, values))}
            row["threads"] = count if row["threads"] == "all" else row["threads"]
            if row not in seen:  # one core: 1 thread is all
                seen.append(row)
                yield row


def prepare(batch, python, folder, options):
    """Has the files of a batch written. Without them (no PyTorch) quern runs on fake data, and alone."""
    job = {"variant": "prepare", "folder": str(folder), "batch": batch, "threads": len(machine.cores())}
    job |= {"arch": options.arch, "image_size": options.image_size}
    job["onnx"] = bool({"openvino", "onnxruntime"} & set(options.variants))
    worker = Worker(python, job, machine.cores(), options.cache)
    try:
        worker.answer()
    except Failed as failed:
        print(f"compare_pytorch: warning: no files for batch {batch}: {failed}", file=sys.stderr)
    finally:
        worker.close()


def run(options):
    python = options.python or machine.interpreter(options.venv)
    program = options.quern or machine.build("resnet50", "release", "examples/resnet50")
    report = {"machine": machine.describe(), "commit": machine.commit(), "rounds": options.rounds}
    report |= {"turn": f"{options.steps} steps" if options.steps else f"{options.seconds:g} s"}
    report |= {"date": datetime.datetime.now().isoformat(timespec="seconds"), "arch": options.arch}
    report |= {"image_size": options.image_size, "arguments": sys.argv[1:], "rows": []}
    report["malloc"] = tcmalloc()
    if not report["malloc"]:
        print("compare_pytorch: warning: no tcmalloc (Debian: libtcmalloc-minimal4), PyTorch may be a quarter slower", file=sys.stderr)
    load = machine.Load()
    with tempfile.TemporaryDirectory() as name:
        folder, prepared, rows = Path(name), set(), list(problems(options))
        progress = Progress([1] * len(rows))
        for row in rows:
            progress.begin(table.label(row))
            if row["batch"] not in prepared:
                prepared.add(row["batch"])
                prepare(row["batch"], python, folder, options)
            report["rows"].append(measure(row, python, program, folder, options, progress.at))
            report["share_of_others"] = load.share_of_others()
            ratio = report["rows"][-1].get("ratio")
            progress.end(f"{ratio:.2f} times the best peer" if ratio else "no peer")
            print(f"{table.label(row)}\n{table.row_lines(report['rows'][-1])}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\n{table.provenance(report)}\n\n{table.markdown(report)}")
    if options.update_readme:
        table.update_readme(report)


def main():
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of the clean-up, as for Ctrl-C
    try:
        table_rows.run(options) if options.rows else run(options)
    except KeyboardInterrupt:
        sys.exit("compare_pytorch: interrupted")


if __name__ == "__main__":
    main()
