"""Sweeps of a stand-in for resnet50: goes on after a kill, passes over bad lines, and its figures can be computed again."""

import io
import json
import os
import pty
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
STAND_IN = Path(__file__).parent / "stand_in.py"
sys.path.insert(0, str(BENCH))

from sweeps import figures, points  # noqa: E402
from sweeps.journal import Journal  # noqa: E402
from sweeps.progress import Progress  # noqa: E402

FOUR = ("--batch", "1,2", "--dtype", "f32,bf16", "--threads", "1", "--steps", "5", "--rounds", "3")


def command(out, *words, script="sweep.py"):
    return [sys.executable, str(BENCH / script), *words, "--quern", str(STAND_IN), "--out", str(out)]


def run(out, *words, script="sweep.py", status=0, **env):
    done = subprocess.run(command(out, *words, script=script), capture_output=True, text=True, env=os.environ | env)
    assert done.returncode == status, f"status {done.returncode}: {done.stderr}"
    return done


def read(path):
    """A file of a process; nothing once that has ended."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def lines(path, kind="round"):
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["kind"] == kind]


class SweepTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = Path(folder.name) / "sweep.jsonl"

    def test_points_take_turns(self):
        run(self.out, *FOUR)
        rounds = lines(self.out)
        self.assertEqual([r["round"] for r in rounds], [0] * 4 + [1] * 4 + [2] * 4)
        order = [points.key(r["point"]) for r in rounds]
        self.assertEqual(len(set(order[:4])), 4)
        self.assertEqual(order, order[:4] * 3)

    def test_goes_on_after_kill(self):
        process = subprocess.Popen(command(self.out, *FOUR), stderr=subprocess.DEVNULL, env=os.environ | {"STAND_IN_MS": "20"})
        deadline = time.monotonic() + 60
        while not (self.out.exists() and self.out.read_bytes().count(b'"kind": "round"') >= 5):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        before = self.out.read_bytes()
        done = run(self.out, *FOUR)
        self.assertRegex(done.stderr, r"goes on; ([5-9]|1[01]) of 12 turns are there")
        self.assertTrue(self.out.read_bytes().startswith(before))
        turns = [(points.key(r["point"]), r["round"]) for r in lines(self.out)]
        self.assertEqual(len(turns), 12)
        self.assertEqual(len(set(turns)), 12)
        whole = self.out.read_bytes()
        run(self.out, *FOUR)  # nothing is left to do
        self.assertEqual(self.out.read_bytes(), whole)

    def test_kill_ends_the_program_that_is_timed(self):
        process = subprocess.Popen(command(self.out, *FOUR), stderr=subprocess.DEVNULL, env=os.environ | {"STAND_IN_MS": "5000"})
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        deadline = time.monotonic() + 60
        while not (timed := [c for c in children.read_text().split() if "stand_in" in read(f"/proc/{c}/cmdline")]):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        process.kill()
        process.wait()
        while (status := read(f"/proc/{timed[0]}/status")) and "zombie" not in status:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_bad_lines_are_said_and_passed_over(self):
        run(self.out, *FOUR)
        good = self.out.read_text().splitlines()
        changed = [
            good[5].replace('"step_ms": [', '"step_ms": [NaN, '),
            good[5].replace('"step_ms": [', '"step_ms": [1e999, '),
            good[5].replace('"step_ms": [', '"step_ms": [-1, '),
            good[5].replace('"round": ', '"round": -'),
            good[5].replace('"batch": ', '"batch": -'),
            good[5].replace('"mode": "infer"', '"mode": "fly"'),
            good[5].replace('"machine": "', '"machine": "other'),
            '{"some": "other file"}',
            "not JSON",
            "[" * 100_000,
            "\u00e4\u0000",
            good[5],
            good[-1][:57],  # cut off, no newline
        ]
        self.out.write_text("\n".join(good + changed))
        journal = Journal(self.out)
        self.assertEqual(len(journal.passed_over), len(changed), journal.passed_over)
        done = run(self.out, *FOUR, "--rounds", "4")
        self.assertEqual(done.stderr.count("; passed over\n"), len(changed))
        self.assertIn(f"{self.out}:{len(good) + len(changed)}: ", done.stderr)
        again = Journal(self.out)
        self.assertEqual([len(r) for r in again.rounds.values()], [4] * 4)
        self.assertEqual(len(again.passed_over), len(changed))

    def test_a_program_keeps_its_commit(self):
        run(self.out, *FOUR)
        renamed = [line | {"point": line["point"] | {"commit": "1234567"}} for line in lines(self.out)]
        self.out.write_text("\n".join(map(json.dumps, lines(self.out, "machine") + renamed)) + "\n")
        run(self.out, *FOUR)
        self.assertEqual({line["point"]["commit"] for line in lines(self.out)}, {"1234567"})
        other = renamed[0] | {"program": "of another tree"}
        self.out.write_text("\n".join(map(json.dumps, lines(self.out, "machine") + [other])) + "\n")
        run(self.out, *FOUR)
        self.assertEqual(len({line["point"]["commit"] for line in lines(self.out)}), 2)

    def test_figures_can_be_computed_again(self):
        done = run(self.out, *FOUR, "--price-per-hour", "0.5")
        by_point = {}
        for line in lines(self.out):
            by_point.setdefault(points.label(line["point"], short=True), []).append(line)
        for name, rounds in by_point.items():
            medians = [statistics.median(r["step_ms"][r["point"]["warm_up"] :]) for r in rounds]
            rate = 1e3 * rounds[0]["point"]["batch"] / statistics.median(medians)
            row = next(row for row in done.stdout.splitlines() if name in row).split(name)[1].split()
            self.assertEqual(row[0], f"{rate:.1f}")
            self.assertEqual(row[-1], f"{0.5e6 / (3600 * rate):.2f}")

    def test_percentiles(self):
        values = list(range(1, 101))
        self.assertEqual([figures.percentile(values, p) for p in (0.5, 0.9, 0.99)], [50.5, 90, 99])
        self.assertEqual(figures.percentile([3], 0.9), 3)

    def test_what_cannot_run_is_told(self):
        done = run(self.out, "--isa", "amx,avx2", "--arch", "broken,resnet50", "--dtype", "f32", "--steps", "3", "--rounds", "2")
        self.assertIn("this CPU has no amx, avx512 ran", done.stdout)
        self.assertIn("expected a network, got broken", done.stdout)
        self.assertEqual(len(lines(self.out)), 2)
        self.assertEqual(len(lines(self.out, "failed")), 3)

    def test_another_machine_is_refused(self):
        run(self.out, *FOUR)
        text = self.out.read_text()
        fields = lines(self.out, "machine")[0]
        self.out.write_text(text.replace(fields["machine"], "00000000").replace(fields["cpu"], "Another CPU"))
        done = run(self.out, *FOUR, "--rounds", "4", status=1)
        self.assertIn("expected a file of this machine", done.stderr)

    def test_two_sweeps_of_one_file(self):
        first = subprocess.Popen(command(self.out, *FOUR), stderr=subprocess.DEVNULL, env=os.environ | {"STAND_IN_MS": "500"})
        while not self.out.exists() or not self.out.read_bytes():
            time.sleep(0.01)
        done = run(self.out, *FOUR, status=1)
        self.assertIn("another sweep writes to it", done.stderr)
        first.kill()
        first.wait()

    def test_bad_options(self):
        for words, what in [
            (("--batch", "0"), "at least 1, got 0"),
            (("--dtype", "f31"), "got f31"),
            (("--isa", "best,x"), "got x"),
            (("--threads", "100000"), "got 100000"),
            (("--price-per-hour", "nan"), "got nan"),
            (("--against", "no-such-tag"), "got no-such-tag"),
        ]:
            self.assertIn(what, run(self.out, *words, status=2).stderr)
            self.assertFalse(self.out.exists())


class TablesTest(unittest.TestCase):
    def test_tables(self):
        with tempfile.TemporaryDirectory() as folder:
            for protocol, words in (("training", ("--workers", "0,8", "--steps", "14")), ("inference", ("--steps", "6"))):
                out = Path(folder) / f"{protocol}.jsonl"
                words = (protocol, *words, "--batch", "2,4", "--threads", "1", "--price-per-hour", "0.36")
                text = run(out, *words, script="tables.py").stdout
                self.assertIn(f"--batch 2,4; --steps {words[words.index('--steps') + 1]}", text)
                rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ")]
                rounds = Journal(out).all_rounds()
                if protocol == "training":
                    self.assertEqual(len(rows), 1 + 3 * 2 * 2 + 1 + 2)
                    point, kept = next(r for r in rounds if r[0]["workers"] == 8)
                    self.assertEqual(point["options"][:2], ["--dummy-size", "1000000"])
                    times = kept[0]["step_ms"][11:]
                    self.assertEqual(len(times), 3)
                    rate = 2e3 * len(times) / sum(times)
                    self.assertEqual(rows[-1][4:], [f"{rate:.2f}", f"{statistics.fmean(times):.1f}", f"{3.6 * rate / 0.36:.1f}"])
                else:
                    self.assertEqual(len(rows), 1 + 6)
                    times = sorted(t for r in rounds[-1][1] for t in r["step_ms"][2:])
                    self.assertEqual(rows[-1][4], f"{times[-(-9 * len(times) // 10) - 1]:.2f}")


class ProgressTest(unittest.TestCase):
    def test_time_left_is_by_weight(self):
        now, stream = [0.0], io.StringIO()
        progress = Progress([1, 3, 4], stream, lambda: now[0])
        progress.begin("a")
        self.assertIsNone(progress.left())
        now[0] = 10
        progress.end("fine")
        progress.begin("b")
        self.assertEqual(progress.left(), 70)
        now[0] = 40
        progress.at(0.5)
        self.assertEqual(progress.left(), 88)
        self.assertEqual(stream.getvalue(), "[1/3] a: fine; 0:10 gone, 1:10 left\n")
        now[0] = 110
        progress.at(0.75)
        self.assertIn("[2/3] b, 75%; 1:50 gone, ", stream.getvalue())
        progress.end("fine")

    def test_a_terminal_has_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            terminal, child = pty.openpty()
            process = subprocess.Popen(command(Path(folder) / "s", *FOUR), stdout=subprocess.DEVNULL, stderr=child)
            os.close(child)
            text = b""
            try:
                while part := os.read(terminal, 4096):
                    text += part
            except OSError:  # its end
                pass
            self.assertEqual(process.wait(), 0)
            self.assertNotIn(b"\n", text)
            self.assertIn(b"\r[12/12] round 3 of 3: infer bf16 nhwc batch 2", text)
            self.assertTrue(text.endswith(b"\r\x1b[K"))


if __name__ == "__main__":
    unittest.main()
