#!/usr/bin/env python3
"""In the place of the program resnet50: takes its options, computes nothing, writes what --json would be. Each step
takes STAND_IN_MS milliseconds (1), of bf16 half of that; of --arch broken it fails."""

import json
import os
import sys
import time

words = sys.argv[1:]


def value(name, otherwise=None):
    return words[words.index(name) + 1] if name in words else otherwise


if value("--arch") == "broken":
    sys.exit("resnet50: error: [model] --arch: expected a network, got broken")
steps, times = int(value("--steps")), []
pause = float(os.environ.get("STAND_IN_MS", 1)) / (2 if "--amp" in words else 1)
for step in range(steps):
    begin = time.perf_counter()
    time.sleep(1e-3 * pause)
    times.append(1e3 * (time.perf_counter() - begin))
    print(f"Epoch: [0][{step + 1}/{steps}] Time", flush=True)
isa = os.environ.get("QUERN_MAX_CPU_ISA", "avx512")
if value("--profile"):
    events = []

    def add(category, name, begin, length, **args):
        events.append({"ph": "X", "cat": category, "name": name, "tid": 0, "ts": begin, "dur": length, "args": args})

    for begin in (0.0, 100.0):
        add("user_annotation", "ProfilerStep", begin, 100.0)
        for place, layer in enumerate(("conv1", "layer1.0.conv1", "fc")):
            kernel = "gemm_bf16" if "--amp" in words else "gemm_f32"
            work = {"module": layer, "kernel": kernel, "flop": 200000, "bytes": 4000 * (place + 1)}
            add("cpu_op", "conv2d_fwd", begin + 30 * place, 8.0, **work)
            add("cpu_op", "conv2d_wgrad", begin + 30 * place + 10, 8.0, **work)
    memory = [{"level": "L2", "gbytes_per_second": 90.0}, {"level": "memory", "gbytes_per_second": 20.0}]
    peaks = {"f32_gflops": 100.0, "bf16_gflops": 200.0, "memory": memory}
    with open(value("--profile"), "w") as file:
        json.dump({"summary": {"peaks": peaks}, "traceEvents": events}, file)
fields = {"isa": "avx512" if isa == "amx" else isa, "step_ms": times, "peak_rss_mib": 100.5}
with open(value("--json"), "w") as file:
    json.dump(fields, file)
