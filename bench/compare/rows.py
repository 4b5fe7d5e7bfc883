"""Measures a row: quern and every variant of its rivals on one problem, in turn."""

import math
import statistics
from contextlib import ExitStack

from . import machine
from .engines import Failed, Quern, Worker

VARIANTS = {
    "eager": "PyTorch",
    "compiled": "PyTorch compiled",
    "frozen": "PyTorch traced, frozen",
    "compiled_frozen": "PyTorch compiled, frozen",
    "openvino": "OpenVINO",
    "onnxruntime": "ONNX Runtime",
}
TRAINING = ("eager", "compiled")
LEAST_STEPS = 8  # a turn: a rival that has waited takes some to come up to its speed

# How far the first losses (training) or logits (inference) of two engines may lie apart, relative by norm: enough to
# tell another network from this one; tests/pytorch/compare_resnet.py holds quern to f64. With random weights 53
# layers in bf16 move ResNet-50's logits by a tenth, each engine's its own way: 0.14 between quern and OpenVINO.
DISTANCE = {("train", "f32"): 5e-3, ("infer", "f32"): 1e-3, ("train", "bf16"): 1e-1, ("infer", "bf16"): 3e-1}


def distance(a, b):
    return math.dist(a, b) / max(math.hypot(*b), 1e-30)


def measure(row, python, program, folder, options, at):
    """The row with what was measured: by engine every step's milliseconds by round, or why there are none. `at` is told
    which share of the turns was taken."""
    cpus = machine.cores()[: row["threads"]]
    quern = Quern(program, row, folder, cpus, options)
    first = quern.run(3)
    expected = quern.results()
    steps = options.steps or max(LEAST_STEPS, min(200, math.ceil(1e3 * options.seconds / statistics.median(first))))
    engines = {"quern": {"rounds": []}}

    names = [v for v in options.variants if row["mode"] == "infer" or v in TRAINING]
    at_once = max(1, int((machine.available_mib() - quern.peak) / (2.5 * quern.peak)))
    groups = [names[i : i + at_once] for i in range(0, len(names), at_once)]
    for number, group in enumerate(groups):
        with ExitStack() as stack:
            workers = []
            for name in group:
                job = {**row, "variant": name, "folder": str(folder), "arch": options.arch}
                try:
                    worker = Worker(python, job, cpus, options.cache)
                    stack.callback(worker.close)
                    ready = worker.answer()
                    apart = distance(ready["results"], expected)
                    if not apart <= DISTANCE[row["mode"], row["dtype"]]:
                        raise Failed(f"computes something else: {apart:.1e} from quern's result")
                except Failed as failed:
                    engines[name] = {"failed": str(failed)}
                    continue
                workers.append(worker)
                engines[name] = {"rounds": [], "version": ready["version"], "distance": apart, "idle_cpu_seconds": 0}
            for turn in range(options.rounds):
                at((number + turn / options.rounds) / len(groups))
                take_turns(quern, workers, engines, steps)
            for worker in workers:
                if "rounds" in engines[worker.name]:
                    engines[worker.name]["peak_mib"] = worker.peak_mib()
    engines["quern"] |= {"peak_mib": quern.peak, "isa": quern.isa}
    return summed_up({**row, "steps": steps, "engines": engines})


def take_turns(quern, workers, engines, steps):
    for taker in (quern, *workers):
        name = "quern" if taker is quern else taker.name
        if "failed" in engines[name]:
            continue
        others = [w for w in workers if w is not taker and "failed" not in engines[w.name]]
        before = [w.cpu_seconds() for w in others]
        try:
            engines[name]["rounds"].append(taker.run(steps))
        except Failed as failed:
            engines[name] = {"failed": str(failed)}
        for other, seconds in zip(others, before):
            engines[other.name]["idle_cpu_seconds"] += other.cpu_seconds() - seconds


def summed_up(record):
    """With each engine's median step, the best peer, and quern's ratios to it."""
    engines, quern = record["engines"], record["engines"]["quern"]
    for engine in engines.values():
        if engine.get("rounds"):
            engine["median_ms"] = statistics.median(map(statistics.median, engine["rounds"]))
            engine["samples_per_second"] = 1e3 * record["batch"] / engine["median_ms"]
    peers = [name for name in engines if name != "quern" and "median_ms" in engines[name]]
    if peers and "median_ms" in quern:
        best = min(peers, key=lambda name: engines[name]["median_ms"])
        peer = engines[best]
        by_round = [statistics.median(b) / statistics.median(a) for a, b in zip(quern["rounds"], peer["rounds"])]
        record |= {"best_peer": best, "ratio": peer["median_ms"] / quern["median_ms"]}
        record |= {"ratio_range": [min(by_round), max(by_round)]}
        record |= {"memory_ratio": quern["peak_mib"] / peer["peak_mib"]}
    return record
