"""Rows of a table: 131,072 rows of 128 f32 out of a million and into them, at random; quern beside PyTorch and numpy, and
beside what the machine copies. And a training step by rows: embedding, its gradient and Adam (PyTorch's SparseAdam), 65,536
rows looked up, in tables of --tables rows. compare_pytorch.py --rows."""

import json
import math
import os
import statistics

from . import machine, ops
from .engines import Engine, environment, tcmalloc

ROWS, WIDTH, TABLE = 131072, 128, 1_000_000
NAMES = ("gather_rows", "scatter_rows", "scatter_add_rows")
TRAIN, LOOKUPS = "train_rows", 65536
PASSES = {"copy": 2, "gather_rows": 2, "scatter_rows": 2, "scatter_add_rows": 3}  # reads and writes of a row


def rows_of(name):
    """How many rows an op moves. Copying is measured in memory: what is copied is as large as the table, or 4 times as
    large as the last cache, and so is where it goes."""
    if name == "copy":
        return max(TABLE, 4 * machine.last_cache() // (4 * WIDTH))
    return LOOKUPS if name == TRAIN else ROWS


def rate(name, seconds):
    """GB/s, read and written."""
    return 1e-9 * PASSES[name] * rows_of(name) * WIDTH * 4 / seconds


def job(name, table=TABLE):
    shapes = [(rows_of(name) if name == "copy" else table, WIDTH), (rows_of(name), WIDTH)]
    return {"op": name, "dtype": "f32", "format": "contiguous", "backward": False, "shapes": shapes, "low": -1, "high": 1}


def one_by_one(table):
    """Is there no room for two engines, which each have Adam's state beside the table?"""
    return 2 * 3 * 4 * WIDTH * table > 0.9 * machine.describe()["memory_mib"] * 2**20


def race(options):
    """The rows of the table, as dictionaries: seconds of each engine."""
    python = options.python or machine.interpreter(options.venv)
    program = options.quern or machine.build("quern_op_times", "bench", "bench")
    env = environment(len(machine.cores()))
    rivals = env | ({"LD_PRELOAD": tcmalloc()} if tcmalloc() else {})
    command = [python, "-W", "ignore", ops.__file__]
    seconds = options.seconds / 4
    rows = []
    for name, table in (*((name, TABLE) for name in NAMES), *((TRAIN, table) for table in options.tables)):
        engines = {"PyTorch": (command, rivals), "quern": ([program], env)}
        if name in NAMES:
            engines["numpy"] = (command, rivals)
            # What the machine copies, on huge pages, on which quern's tensors are anyhow.
            engines["copy"] = (command, rivals | {"THP_MEM_ALLOC_ENABLE": "1"})
        results, turns = {}, {engine: [] for engine in engines}
        for group in [[engine] for engine in engines] if one_by_one(table) else [list(engines)]:
            processes = {engine: Engine(*engines[engine]) for engine in group}
            for engine, process in processes.items():
                if engine != "quern":
                    process.read()  # its version
                answer = process.ask(**job({"numpy": f"numpy_{name}", "copy": "copy"}.get(engine, name), table))
                if engine != "copy":
                    results[engine] = answer
            for _ in range(options.rounds):
                for engine, process in processes.items():
                    turns[engine].append(process.time(seconds))
            for process in processes.values():
                process.close()
        # Of rows that are written twice, engines keep another one.
        agree = all(math.isclose(a, results["PyTorch"], rel_tol=1e-3) for a in results.values())
        rows.append({"op": name, "table": table, "seconds": {e: statistics.median(t) for e, t in turns.items()}, "agree": agree})
        rows[-1]["ratios"] = [p / q for p, q in zip(turns["PyTorch"], turns["quern"])]
        if name in NAMES:
            rows[-1]["shares"] = [rate(name, q) / rate("copy", c) for q, c in zip(turns["quern"], turns["copy"])]
    return rows


def run(options):
    rows = race(options)
    print(f"{machine.describe()['cpu']}, {len(machine.cores())} threads, quern {machine.commit()}, {os.uname().machine}; ", end="")
    print(f"{ROWS:,} rows of {WIDTH} f32, a table of {TABLE:,}; medians of {options.rounds} rounds\n")
    print("| | quern, GB/s | share of copying (by round) | PyTorch, GB/s | numpy, GB/s | quern ÷ PyTorch (by round) |\n|---|---|---|---|---|---|")
    of = lambda values: f"**{statistics.median(values):.2f}** ({min(values):.2f}–{max(values):.2f})"
    moves, steps = rows[: len(NAMES)], rows[len(NAMES) :]
    for row in moves:
        quern, torch, numpy = (rate(row["op"], row["seconds"][engine]) for engine in ("quern", "PyTorch", "numpy"))
        differs = "" if row["agree"] else " RESULTS DIFFER"
        print(f"| {row['op']} | {quern:.1f} | {of(row['shares'])} | {torch:.1f} | {numpy:.1f} | {of(row['ratios'])} |{differs}")
    print()
    for row in steps:
        quern, torch = (1e3 * row["seconds"][engine] for engine in ("quern", "PyTorch"))
        print(f"A training step on a table of {row['table']:,}: {quern:.1f} ms, PyTorch {torch:.1f} ms: ", end="")
        print(f"{of(row['ratios'])} times as fast{', one engine after the other' if one_by_one(row['table']) else ''}", end="")
        print("." if row["agree"] else ". RESULTS DIFFER.")
    copying = ", ".join(f"{rate('copy', row['seconds']['copy']):.1f}" for row in moves)
    print(f"PyTorch copies {rows_of('copy'):,} such rows, as they lie, at {copying} GB/s, read and written, on huge pages.")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine.describe(), "commit": machine.commit(), "rows": rows}, indent=1) + "\n")
    if not all(row["agree"] for row in rows):
        raise SystemExit(1)
