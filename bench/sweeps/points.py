"""The points of a sweep: what the program resnet50 is asked to time.

A point is a dictionary; two are the same if all of it is. `isa`: a cap, or None; `steps`: None for as many as fit into
a turn's seconds; `warm_up`: the first steps, which are in the journal but not in the figures.
"""

import itertools
import json

from compare.engines import environment

DTYPES = ("f32", "high", "medium", "bf16")
LAYOUTS = ("nchw", "nhwc")
ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx", "neon", "neon_bf16", "sve", "sve_bf16")
DEFAULTS = {
    "mode": "infer",
    "arch": "resnet50",
    "image_size": 224,
    "batch": 16,
    "dtype": "f32",
    "layout": "nhwc",
    "threads": 1,
    "isa": None,
    "fused": True,
    "workers": None,
    "options": [],
    "steps": None,
    "warm_up": 2,
    "commit": "",
}


def make(**fields):
    unknown = fields.keys() - DEFAULTS.keys()
    assert not unknown, unknown
    return DEFAULTS | fields


def key(point):
    return json.dumps(point, sort_keys=True)


def product(**axes):
    """Every combination of the axes' values, the last axis changing first."""
    return [make(**dict(zip(axes, values))) for values in itertools.product(*axes.values())]


def label(point, short=False):
    """For people. `short`: without what is as nearly always."""
    words = [point["mode"], point["dtype"], point["layout"], f"batch {point['batch']},"]
    words.append(f"{point['threads']} thread{'s' * (point['threads'] != 1)}")
    if point["isa"]:
        words.append(point["isa"])
    if not point["fused"]:
        words.append("op by op")
    if point["workers"] is not None:
        words.append(f"{point['workers']} workers")
    if not short:
        words = [point["arch"], *words, f"[{point['commit']}]"]
    return " ".join(words)


def labels(points):
    """For a table: with commits if there are several."""
    several = len({point["commit"] for point in points}) > 1
    return [label(p) if several else f"{p['arch']} {label(p, short=True)}" for p in points]


def command(point, program, steps, json_path):
    words = [program, point["mode"], "--arch", point["arch"], "--image-size", point["image_size"]]
    words += ["-b", point["batch"], "--threads", point["threads"], "--steps", steps, "--json", json_path]
    words += ["-p", max(1, steps // 20)]  # what a turn's progress is read from
    words += {"f32": [], "bf16": ["--amp"]}.get(point["dtype"], ["--matmul-precision", point["dtype"]])
    words += ["--channels-last"] if point["layout"] == "nhwc" else []
    words += [] if point["fused"] else ["--no-fuse"]
    words += [] if point["workers"] is None else ["--workers", point["workers"]]
    return [str(word) for word in words + point["options"]]


def variables(point):
    """The environment of a turn: a thread a core; but threads that load beside the step go where there is room."""
    env = environment(point["threads"])
    if point["workers"] is not None:
        del env["OMP_PROC_BIND"]
    if point["isa"]:
        env["QUERN_MAX_CPU_ISA"] = point["isa"]
    return env
