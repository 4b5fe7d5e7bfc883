"""quern and its rivals as processes that take turns. One computes at a time."""

import array
import ctypes.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import worker


class Failed(Exception):
    """Why an engine gives no figures."""


def environment(threads=None):
    """This process's, without what steers thread pools. With `threads`: OpenMP's, one bound to each core."""
    steering = ("OMP_", "KMP_", "GOMP_", "MKL_", "QUERN_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(steering)}
    if threads is not None:
        env |= {"OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "true"}
    return env


def tcmalloc():
    """The allocator that PyTorch is at its best with (its tuning guide; up to a quarter faster), or None."""
    return ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")


def reason(status, stderr):
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]  # of Python; advice may follow
    return (errors or lines or [f"ended with status {status}"])[-1][:200]


class Worker:
    """A rival: worker.py in a process, with its own thread pool."""

    def __init__(self, python, job, cpus, cache, timeout=1800):
        self.name, self.timeout = job["variant"], timeout
        # OpenVINO and ONNX Runtime make threads that inherit the binding of the main one: no binding for them.
        own_pool = self.name in ("openvino", "onnxruntime")
        env = environment(None if own_pool else job["threads"])
        env["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
        # OpenVINO 2026.4 frees what its own loader allocated, on which tcmalloc ends it.
        if tcmalloc() and self.name != "openvino":
            env["LD_PRELOAD"] = tcmalloc()
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [python, "-W", "ignore", worker.__file__, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=env,
            start_new_session=True,  # to end it with the compilers it started
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        )

    def answer(self):
        readable, _, _ = select.select([self.process.stdout], [], [], self.timeout)
        if not readable:
            raise Failed(f"no answer in {self.timeout} s")
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.errors.seek(0)
            raise Failed(reason(status, self.errors.read()))
        fields = json.loads(line)
        if "unavailable" in fields:
            raise Failed(fields["unavailable"])
        return fields

    def run(self, steps):
        """Milliseconds of each step."""
        try:
            self.process.stdin.write(f"{steps}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # answer() tells why
        return self.answer()["step_ms"]

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_mib(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


class Quern:
    """The program resnet50, a process a turn. Its first WARM_UP steps, which allocate and pack, are not counted."""

    def __init__(self, program, row, folder, cpus, options):
        self.cpus, self.threads, self.mode = cpus, row["threads"], row["mode"]
        self.json, self.logits = folder / "quern.json", folder / "quern.safetensors"
        self.command = [program, row["mode"], "--arch", options.arch, "--threads", row["threads"]]
        self.command += ["--no-drop"] if row["mode"] == "train" else []  # the rivals draw nothing
        self.command += ["-p", 1 << 20, "--json", self.json]
        self.command += ["--amp"] if row["dtype"] == "bf16" else []
        self.command += ["--channels-last"] if row["layout"] == "channels_last" else []
        self.command += options.quern_options
        if row["mode"] == "train":
            self.command += ["--lr", worker.SGD["lr"], "--momentum", worker.SGD["momentum"]]
            self.command += ["--wd", worker.SGD["weight_decay"]]
        else:
            self.command += ["--dump-output", self.logits]
        paths = worker.files({"folder": folder, "batch": row["batch"]})
        if paths["batch"].exists():
            self.command += ["--weights", paths["weights"], "--batch", paths["batch"]]
        else:
            self.command += ["-b", row["batch"], "--image-size", options.image_size, "--dummy-size", 1]
        self.peak = 0.0
        self.isa = None

    def run(self, steps):
        command = [str(word) for word in [*self.command, "--steps", worker.WARM_UP + steps]]
        done = subprocess.run(
            command,
            env=environment(self.threads),
            preexec_fn=lambda: os.sched_setaffinity(0, self.cpus),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            why = done.stderr.strip() if done.returncode > 0 else reason(done.returncode, "")
            sys.exit(f"compare_pytorch: {' '.join(command)}:\n{why}")
        report = json.loads(self.json.read_text())
        self.losses, self.isa = report["loss"], report["isa"]
        self.peak = max(self.peak, report["peak_rss_mib"])
        return report["step_ms"][worker.WARM_UP :]

    def results(self):
        """What worker.py answers, of the last turn: the first losses, or the first image's logits."""
        if self.mode == "train":
            return self.losses[: worker.WARM_UP]
        data = self.logits.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        info = json.loads(data[8:start])["logits"]
        begin = start + info["data_offsets"][0]
        return list(array.array("f", data[begin : begin + 4 * info["shape"][1]]))


class Engine:
    """A process that answers a line of JSON with a number. It ends with its input; Ctrl-C is for who asks."""

    def __init__(self, command, env):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=env, start_new_session=True, text=True, **pipes)

    def read(self):
        line = self.process.stdout.readline().strip()
        if not line:
            raise SystemExit(f"{self.process.args[0]} ended")
        return line

    def ask(self, **question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return float(self.read())

    def time(self, seconds):
        """A call's seconds, the mean of a turn. It begins when the threads of the engine before are asleep and its own
        are awake: else those, which OpenMP has spin for some milliseconds, take part of the CPU."""
        time.sleep(0.03)
        self.ask(seconds=seconds / 8)
        return self.ask(seconds=seconds)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
