"""Times points in turn: a round of each, A B C, then the next round, A B C; a process a turn."""

import ctypes
import datetime
import hashlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from compare import machine
from compare.engines import reason

from . import figures, points
from .progress import Progress

LEAST_STEPS, MOST_STEPS = 8, 200  # a turn, where --seconds tells its length
STEP = re.compile(r"Epoch: \[\d+\]\[(\d+)/(\d+)\]")


class Failed(Exception):
    """Why a point has no figures."""


def peaks():
    """What resnet50 --profile has measured of this machine, if it has."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return json.loads((folder / "quern" / "peaks.json").read_text())
    except (OSError, ValueError):
        return None


def this_machine(price_per_hour=None):
    """The fields of a journal's line of this machine. Its id is made of what makes figures differ."""
    fields = machine.describe()
    fields |= {"machine": hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:8]}
    fields |= {"peaks": peaks(), "price_per_hour": price_per_hour}
    return fields | {"time": datetime.datetime.now().isoformat(timespec="seconds")}


def digest_of(program):
    return hashlib.sha256(Path(program).read_bytes()).hexdigest()[:12]


def commit_of(program, journal):
    """What the program is of: the commit under which the journal has it, whatever was committed since that it is not
    made of; else the tree's; of one that was changed, with what tells its program from others."""
    digest = digest_of(program)
    for point, rounds in journal.all_rounds():
        if any(line.get("program") == digest for line in rounds):
            return point["commit"]
    commit = machine.commit()
    return commit + digest[:6] if commit.endswith("+") else commit


def _die_with_parent(cpus):
    def prepare():
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no process goes on after a sweep that was killed
        os.sched_setaffinity(0, cpus)

    return prepare


def run(point, program, steps, at=lambda fraction: None, more=()):
    """The fields of --json of a run of resnet50; `at` is told how far it is."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        path = Path(folder) / "run.json"
        process = subprocess.Popen(
            [*points.command(point, program, steps, path), *more],
            env=points.variables(point),
            preexec_fn=_die_with_parent(machine.cores()[: point["threads"]]),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            for line in process.stdout:
                if step := STEP.match(line):
                    at(int(step[1]) / int(step[2]))
            status = process.wait()
        finally:
            process.kill()
            process.wait()
        if status != 0:
            errors.seek(0)
            raise Failed(reason(status, errors.read()))
        return json.loads(path.read_text())


def measure(point, program, steps, at):
    """The same, of a point's turn, once it is what was asked for."""
    result = run(point, program, steps, at)
    if point["isa"] and result["isa"] != point["isa"]:
        raise Failed(f"this CPU has no {point['isa']}, {result['isa']} ran")
    return result


def steps_of(point, rounds, program, seconds):
    """Steps of a turn, warm-up included: the point's own, those of its earlier rounds, or by a try."""
    if point["steps"]:
        return point["steps"]
    if rounds:
        return len(rounds[0]["step_ms"])
    tried = measure(point, program, point["warm_up"] + 3, lambda fraction: None)["step_ms"][point["warm_up"] :]
    timed = math.ceil(1e3 * seconds / statistics.median(tried))
    return point["warm_up"] + max(LEAST_STEPS, min(MOST_STEPS, timed))


def work(point):
    """How long a turn takes, relative to others."""
    if not point["steps"]:
        return 1
    return point["steps"] * point["batch"] * (3 if point["mode"] == "train" else 1)


def take(journal, wanted, programs, rounds, seconds, here):
    """Measures what the journal lacks of `rounds` of each of the wanted points. `programs`: by commit."""
    others = {line["cpu"] for id, line in journal.machines.items() if id != here["machine"]}
    if others:
        sys.exit(f"{journal.path}: expected a file of this machine ({here['cpu']}, {here['cores']} cores), got one of "
                 f"{', '.join(sorted(others))} or with other cores, memory or kernel: name another --out")  # fmt: skip
    turns = [(n, p) for n in range(rounds) for p in wanted if n not in journal.rounds.get(points.key(p), {})]
    done = rounds * len(wanted) - len(turns)
    if done:
        print(f"{journal.path}: goes on; {done} of {rounds * len(wanted)} turns are there", file=sys.stderr)
    if not turns:
        return
    journal.open()
    journal.append("machine", **here)
    progress, load = Progress([work(point) for _, point in turns]), machine.Load()
    failed = set()
    for number, point in turns:
        key, program = points.key(point), programs[point["commit"]]
        progress.begin(f"round {number + 1} of {rounds}: {points.label(point, short=True)}")
        if key in failed:
            progress.end("failed before")
            continue
        try:
            steps = steps_of(point, list(journal.rounds.get(key, {}).values()), program, seconds)
            result = measure(point, program, steps, progress.at)
        except Failed as why:
            failed.add(key)
            journal.append("failed", machine=here["machine"], point=point, why=str(why))
            progress.end(f"failed: {why}")
            continue
        kept = {name: result[name] for name in ("isa", "peak_rss_mib", "step_ms")}
        now = datetime.datetime.now().isoformat(timespec="seconds")
        kept["program"] = digest_of(program)
        load_now = {"time": now, "share_of_others": round(load.share_of_others(), 4)}
        journal.append("round", machine=here["machine"], point=point, round=number, **load_now, **kept)
        line = journal.rounds[key][number]
        progress.end(f"{figures.of([line])['images_per_second']:.1f} images/s")
        load = machine.Load()
