"""The machine, the interpreter of the rivals and the program that is compared."""

import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TORCH = "torch==2.13.0"
PACKAGES = ("numpy", "openvino", "onnxruntime", "onnx")
CPU_WHEELS = ("--index-url", "https://download.pytorch.org/whl/cpu", "--timeout", "10", "--retries", "0")


def cores():
    """One CPU of each core that this process may run on."""
    first = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        first.setdefault(siblings.read_text() if siblings.exists() else cpu, cpu)
    return sorted(first.values())


def describe():
    info = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        info.setdefault(name.strip(), value.strip())
    flags = info.get("flags", info.get("Features", "")).split()
    kept = ("avx2", "fma", "asimd", "sve", "bf16")
    return {
        "cpu": info.get("model name", platform.machine()),
        "family_model_stepping": [info.get(name) for name in ("cpu family", "model", "stepping")],
        "flags": [f for f in flags if f in kept or f.startswith(("avx512", "avx_", "amx"))],
        "cores": len(cores()),
        "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
        "kernel": platform.release(),
    }


def available_mib():
    """Memory that is free or can be made so."""
    fields = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()
    return int(fields[0]) / 1024


def last_cache():
    """Bytes of the largest cache, 0 where Linux does not say."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size.rstrip("KM")) << (20 if size.endswith("M") else 10) for size in sizes), default=0)


class Load:
    """How much of the CPU others had from its making on: other programs, other machines on the same host."""

    def __init__(self):
        self.start = self.now()

    @staticmethod
    def now():
        user, nice, system, idle, iowait, irq, softirq, steal, *_ = map(
            int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        )
        own = sum(os.times()[:4]) * os.sysconf("SC_CLK_TCK")  # with those children that have ended
        busy = user + nice + system + irq + softirq + steal
        return busy, own, busy + idle + iowait

    def share_of_others(self):
        busy, own, total = (b - a for a, b in zip(self.start, self.now()))
        return max(0.0, busy - own) / max(1, total)


def interpreter(venv):
    """A Python with PyTorch and the other engines, made in the folder `venv` if it is not there. A package that
    cannot be had is told, and its engine misses in the comparison."""
    python, done = venv / "bin" / "python", venv / "installed.txt"
    wanted = "\n".join((TORCH, *PACKAGES))
    if done.exists() and done.read_text() == wanted:
        return str(python)
    print(f"Installing {', '.join((TORCH, *PACKAGES))} in {venv}", flush=True)
    if subprocess.run([sys.executable, "-m", "venv", venv]).returncode != 0:
        sys.exit("compare_pytorch: no virtual environment (Debian: apt install python3-venv); or name a --python")

    def install(*words):
        return subprocess.run([python, "-m", "pip", "install", "-q", *words]).returncode == 0

    # The wheels for CPUs are a tenth of the others, which compute the same here.
    complete = install(TORCH, *CPU_WHEELS) or install(TORCH)
    for package in PACKAGES:
        complete = install(package) and complete
    if complete:
        done.write_text(wanted)
    return str(python)


def build(program, preset, folder):
    """A program of this tree, built."""
    words = [ROOT / "dev", "build", "--preset", preset, "--target", program]
    if subprocess.run(words, stdout=subprocess.DEVNULL).returncode != 0:
        sys.exit(f"./dev build --target {program} failed")
    return str(ROOT / "build" / preset / folder / program)


def commit():
    """The tree's commit, with a + for one that has been changed."""

    def git(*words):
        done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
