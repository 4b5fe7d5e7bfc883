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
fields = {"isa": "avx512" if isa == "amx" else isa, "step_ms": times, "peak_rss_mib": 100.5}
with open(value("--json"), "w") as file:
    json.dump(fields, file)
