"""The file of a sweep: a line of JSON for each machine, round and failure, in the order they came about.

    {"quern_sweep": 1, "kind": "machine", "machine": "<id>", "cpu": ..., "cores": ..., "flags": [...], "peaks": {...}, ...}
    {"quern_sweep": 1, "kind": "round", "machine": "<id>", "point": {...}, "round": 0, "isa": ..., "step_ms": [...], ...}
    {"quern_sweep": 1, "kind": "failed", "machine": "<id>", "point": {...}, "why": "..."}

A line is on the disk before the next turn begins. What is no such line, a last one that was cut off, a figure that is no
number: said, and passed over.
"""

import fcntl
import json
import math
import os

from . import points


class BadLine(Exception):
    """Why a line is passed over."""


def _no_number(text):
    raise BadLine(f"expected numbers, got {text}")


def _expect(ok, what):
    if not ok:
        raise BadLine(f"expected {what}")


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_point(point):
    _expect(isinstance(point, dict) and point.keys() == points.DEFAULTS.keys(), "a point with its fields")
    for name in ("image_size", "batch", "threads"):
        _expect(type(point[name]) is int and point[name] > 0, f"{name} of at least 1, got {point[name]}")
    for name in ("steps", "workers"):
        _expect(point[name] is None or type(point[name]) is int, f"{name} to be a whole number or null")
    _expect(type(point["warm_up"]) is int and point["warm_up"] >= 0, "warm_up of at least 0")
    _expect(all(isinstance(point[name], str) for name in ("arch", "commit")), "names of a network and a commit")
    _expect(isinstance(point["options"], list) and isinstance(point["fused"], bool), "options, and fused or not")
    _expect(point["mode"] in ("train", "infer"), f"mode train or infer, got {point['mode']}")
    _expect(point["dtype"] in points.DTYPES, f"a dtype of {','.join(points.DTYPES)}, got {point['dtype']}")
    _expect(point["layout"] in points.LAYOUTS, f"a layout of {','.join(points.LAYOUTS)}, got {point['layout']}")
    _expect(point["isa"] in (None, *points.ISAS), f"an isa that there is, got {point['isa']}")


def _check_round(line):
    times, warm_up = line.get("step_ms"), line["point"]["warm_up"]
    _expect(type(line.get("round")) is int and line["round"] >= 0, "a round from 0 on")
    _expect(isinstance(times, list) and all(_is_number(t) and t > 0 for t in times), "step_ms of numbers above 0")
    _expect(len(times) > warm_up, f"more steps than the {warm_up} of the warm-up, got {len(times)}")
    _expect(_is_number(line.get("peak_rss_mib")) and isinstance(line.get("isa"), str), "peak_rss_mib and isa")


def _parse(text):
    try:
        line = json.loads(text, parse_constant=_no_number)
    except ValueError:
        raise BadLine("expected a line of JSON; cut off, or not of a sweep") from None
    except RecursionError:
        raise BadLine("expected a line of a sweep, got brackets in brackets") from None
    _expect(isinstance(line, dict) and line.get("quern_sweep") == 1, "a line of a sweep")
    _expect(line.get("kind") in ("machine", "round", "failed"), f"a machine, round or failed, got {line.get('kind')}")
    _expect(isinstance(line.get("machine"), str), "the id of a machine")
    if line["kind"] == "machine":
        _expect(isinstance(line.get("cpu"), str) and type(line.get("cores")) is int, "a CPU and its cores")
    else:
        _check_point(line.get("point"))
    if line["kind"] == "round":
        _check_round(line)
    return line


class Journal:
    """What a file holds. `machines`: by id; `rounds`: by the point's key, then by number; `failed`: lines by the
    point's key, of points without rounds; `passed_over`: a sentence for each line that was."""

    def __init__(self, path):
        self.path = path
        self.machines, self.rounds, self.failed, self.passed_over = {}, {}, {}, []
        self._file = None
        for number, text in enumerate(path.read_bytes().split(b"\n") if path.exists() else [], 1):
            if text.strip():
                try:
                    self._take(_parse(text.decode("utf-8", "replace")))
                except BadLine as bad:
                    self.passed_over.append(f"{path}:{number}: {bad}; passed over")

    def _take(self, line):
        if line["kind"] == "machine":
            self.machines[line["machine"]] = line
            return
        _expect(line["machine"] in self.machines, f"a machine that is told above, got {line['machine']}")
        key = points.key(line["point"])
        if line["kind"] == "failed":
            self.failed[key] = line
            return
        rounds = self.rounds.setdefault(key, {})
        _expect(line["round"] not in rounds, f"round {line['round']} of {points.label(line['point'])} once, got it again")
        rounds[line["round"]] = line
        self.failed.pop(key, None)

    def open(self):
        """To append. Errors: another process does."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self.path, "ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"{self.path}: another sweep writes to it") from None
        if self._file.tell() > 0 and not self.path.read_bytes().endswith(b"\n"):
            self._write(b"\n")  # after a line that was cut off

    def append(self, kind, **fields):
        line = {"quern_sweep": 1, "kind": kind, **fields}
        text = json.dumps(line, allow_nan=False)
        self._take(_parse(text))
        self._write(text.encode() + b"\n")

    def _write(self, data):
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())

    def all_rounds(self):
        """[(point, its rounds in order)], in the order of the file."""
        return [(next(iter(r.values()))["point"], [r[i] for i in sorted(r)]) for r in self.rounds.values()]
