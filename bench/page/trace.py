"""A trace of resnet50 --profile: where the time of its steps went, by op and module.

Self time is as in nn/profiler.h: a moment of a step belongs, in equal parts, to the innermost span of each thread that
is in one; waiting counts where all threads do.
"""

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field

NOWHERE = ("(outside of spans)", "")
WAITING = ("(waiting)", "")  # time in which all that threads did was wait for others


class BadTrace(Exception):
    """Why a file is no trace."""


@dataclass
class Part:
    """What an op did in a module."""

    self_us: float = 0.0
    flop: int = 0
    bytes: int = 0
    bf16: bool = False  # its factors


@dataclass
class Trace:
    name: str
    steps: int
    step_us: float  # of all steps
    parts: dict  # (op, module): Part
    peaks: dict | None
    note: str = ""
    summary: dict = field(default_factory=dict)


def read(path, name=None):
    """Errors: BadTrace."""
    try:
        trace = json.loads(path.read_text(), parse_constant=_no_number)
        spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        for span in spans:
            if not (math.isfinite(span["ts"]) and span["dur"] >= 0):
                raise BadTrace(f"expected times, got {span['ts']} and {span['dur']}")
        steps = [s for s in spans if s["cat"] == "user_annotation"]
        parts = _parts([s for s in spans if s["cat"] != "user_annotation"], steps)
        summary = trace["summary"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadTrace(f"{path}: expected a trace of resnet50 --profile, got {type(error).__name__}: {error}") from None
    if not steps:
        raise BadTrace(f"{path}: expected a step, got none")
    step_us = sum(s["dur"] for s in steps)
    return Trace(name or path.name, len(steps), step_us, parts, summary.get("peaks"), summary=summary)


def _no_number(text):
    raise ValueError(f"{text} as a number")


def _owner(span):
    """Whose time a span's is: (op, module)."""
    module = span["args"].get("module", "")
    if span["cat"] == "module":
        return ("(modules)", module)
    return (span["args"].get("op", span["name"]), module)


def _parts(spans, steps):
    parts = defaultdict(Part)
    changes = []  # (time, thread, the owner of the innermost span from then on, or None)
    by_thread = defaultdict(list)
    for span in spans:
        by_thread[span["tid"]].append(span)
        args = span["args"]
        if span["cat"] == "cpu_op" and "flop" in args:
            part = parts[_owner(span)]
            part.flop, part.bytes = part.flop + args["flop"], part.bytes + args["bytes"]
            part.bf16 |= "bf16" in args.get("kernel", "")
    for thread, its in by_thread.items():
        its.sort(key=lambda s: (s["ts"], -s["dur"]))
        stack = []

        def close_until(time):
            while stack and stack[-1][0] <= time:
                end, _ = stack.pop()
                changes.append((end, thread, stack[-1][1] if stack else None))

        for span in its:
            close_until(span["ts"])
            owner = WAITING if span["cat"] == "wait" else _owner(span)
            stack.append((span["ts"] + span["dur"], owner))
            changes.append((span["ts"], thread, owner))
        close_until(math.inf)
    _share_out(sorted(changes, key=lambda c: c[0]), steps, parts)
    return dict(parts)


def _share_out(changes, steps, parts):
    at_work, next_change = {}, 0
    for step in steps:
        now, end = step["ts"], step["ts"] + step["dur"]
        while True:
            change = changes[next_change] if next_change < len(changes) else None
            until = min(end, change[0]) if change else end
            if until > now:
                working = [owner for owner in at_work.values() if owner != WAITING]
                for owner in working or (WAITING if at_work else NOWHERE,):
                    parts[owner].self_us += (until - now) / max(1, len(working))
                now = until
            if change is None or change[0] > end:
                break
            next_change += 1
            if change[2] is None:
                at_work.pop(change[1], None)
            else:
                at_work[change[1]] = change[2]


def roofs(peaks):
    """({"f32": GFLOP/s, "bf16": GFLOP/s}, {level: GB/s}) of what was measured; None where nothing was. The first level,
    which holds no layer's operands, is left out."""
    if isinstance(peaks, dict) and isinstance(peaks.get("peaks"), list) and peaks["peaks"]:
        peaks = peaks["peaks"][-1]
    try:
        arithmetic = {dtype: float(peaks[f"{dtype}_gflops"]) for dtype in ("f32", "bf16")}
        return arithmetic, {m["level"]: float(m["gbytes_per_second"]) for m in peaks["memory"] if m["level"] != "L1"}
    except (KeyError, TypeError, ValueError):
        return None
