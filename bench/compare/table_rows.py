"""Rows of a table: 131,072 rows of 128 f32 out of a million and into them, at random; quern beside PyTorch and numpy, and
beside what the machine copies. And a training step by rows: embedding, its gradient and Adam (PyTorch's SparseAdam), 65,536
rows looked up. compare_pytorch.py --rows."""

import json
import math
import os
import statistics

from . import machine, ops
from .engines import Engine, environment, tcmalloc

ROWS, WIDTH, TABLE = 131072, 128, 1_000_000
NAMES = ("gather_rows", "scatter_rows", "scatter_add_rows")
TRAIN, LOOKUPS = "train_rows", 65536
PASSES = {"copy": 2, "gather_rows": 2, "scatter_rows": 2, "scatter_add_rows": 3}  # reads and writes of so many rows


def job(name):
    shapes = [(TABLE, WIDTH), (LOOKUPS if name == TRAIN else ROWS, WIDTH)]
    return {"op": name, "dtype": "f32", "format": "contiguous", "backward": False, "shapes": shapes, "low": -1, "high": 1}


def race(options):
    """The rows of the table, as dictionaries: seconds of each engine."""
    python = options.python or machine.interpreter(options.venv)
    program = options.quern or machine.build("quern_op_times", "bench", "bench")
    env = environment(len(machine.cores()))
    rivals = env | ({"LD_PRELOAD": tcmalloc()} if tcmalloc() else {})
    command = [python, "-W", "ignore", ops.__file__]
    seconds = options.seconds / 4
    rows = []
    for name in ("copy", *NAMES, TRAIN):
        # What the machine copies is measured on huge pages, on which quern's tensors are anyhow.
        engines = {"PyTorch": Engine(command, rivals | ({"THP_MEM_ALLOC_ENABLE": "1"} if name == "copy" else {}))}
        if name != "copy":
            engines["quern"] = Engine([program], env)
        if name in NAMES:
            engines["numpy"] = Engine(command, rivals)
        results = {}
        for engine, process in engines.items():
            if engine != "quern":
                process.read()  # its version
            results[engine] = process.ask(**job(f"numpy_{name}" if engine == "numpy" else name))
        turns = {engine: [] for engine in engines}
        for _ in range(options.rounds):
            for engine, process in engines.items():
                turns[engine].append(process.ask(seconds=seconds))
        for process in engines.values():
            process.close()
        # Of rows that are written twice, engines keep another one.
        agree = all(math.isclose(a, results["PyTorch"], rel_tol=1e-3) for a in results.values())
        rows.append({"op": name, "seconds": {e: statistics.median(t) for e, t in turns.items()}, "agree": agree})
        rows[-1]["ratios"] = [p / q for p, q in zip(turns["PyTorch"], turns.get("quern", ()))]
    return rows


def run(options):
    rows = race(options)
    print(f"{machine.describe()['cpu']}, {len(machine.cores())} threads, quern {machine.commit()}, {os.uname().machine}; ", end="")
    print(f"{ROWS:,} rows of {WIDTH} f32, a table of {TABLE:,}; medians of {options.rounds} rounds\n")
    print("| | quern, GB/s | share of copying | PyTorch, GB/s | numpy, GB/s | quern ÷ PyTorch (by round) |\n|---|---|---|---|---|---|")
    rate = lambda row, engine: 1e-9 * PASSES[row["op"]] * ROWS * WIDTH * 4 / row["seconds"][engine]
    copying = rate(rows[0], "PyTorch")
    for row in rows[1:-1]:
        low, high = min(row["ratios"]), max(row["ratios"])
        ratio = f"**{statistics.median(row['ratios']):.2f}** ({low:.2f}–{high:.2f})"
        print(
            f"| {row['op']} | {rate(row, 'quern'):.1f} | {rate(row, 'quern') / copying:.2f} | {rate(row, 'PyTorch'):.1f} | "
            f"{rate(row, 'numpy'):.1f} | {ratio} |{'' if row['agree'] else ' RESULTS DIFFER'}"
        )
    quern, torch = (1e3 * rows[-1]["seconds"][engine] for engine in ("quern", "PyTorch"))
    ratios = rows[-1]["ratios"]
    print(f"\nA training step: {quern:.1f} ms, PyTorch {torch:.1f} ms: **{statistics.median(ratios):.2f}**", end=" ")
    print(f"({min(ratios):.2f}–{max(ratios):.2f}) times as fast{'' if rows[-1]['agree'] else ' RESULTS DIFFER'}.")
    print(f"PyTorch copies {ROWS:,} such rows at {copying:.1f} GB/s, read and written, on huge pages.")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine.describe(), "commit": machine.commit(), "rows": rows}, indent=1) + "\n")
    if not all(row["agree"] for row in rows):
        raise SystemExit(1)
