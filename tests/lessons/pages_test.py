#!/usr/bin/env python3
"""The pages of the lessons: code and tables are what their sources make of them, links lead somewhere, and their commands run.

    pages_test.py BUILD     with the programs of this folder of a build
"""

import functools
import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "examples/lessons"
BUILD = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(LESSONS))
import pages  # noqa: E402


def has_matplotlib(python):
    return subprocess.run([python, "-c", "import matplotlib"], capture_output=True).returncode == 0


PYTHON = next((python for python in (sys.executable, "/usr/bin/python3") if Path(python).exists() and has_matplotlib(python)), None)


def run(command):
    """In the project's folder, on this build; on a small network, and without pictures where there is no matplotlib."""
    if PYTHON is None:
        command = re.sub(r"--chart \S+", "", command)
    command = re.sub(r"resnet50 train(?!.* --arch)", "resnet50 train --arch resnet18", command)
    lessons = f"{PYTHON or sys.executable} {LESSONS}/lessons.py --programs {BUILD}/examples"
    command = command.replace("build/release", str(BUILD)).replace("./dev lessons", f"{lessons} --size 40 50 60 --layer 1 32 8 --images 1 --rounds 1 --seconds 0.01 --no-network")
    return subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, executable="/bin/bash")


@functools.cache
def run_block(block):
    """Commands of a page, once."""
    return run("set -e -o pipefail\n" + block)


class Pages(unittest.TestCase):
    def test_code_and_tables_are_what_sources_and_measurements_make_of_them(self):
        self.assertEqual(pages.check(), [])

    def test_what_programs_printed_they_print(self):
        printed = run_block("build/release/examples/lessons/quern_precision\n").stdout.split()
        kept = (LESSONS / "precision/printed.txt").read_text().split()
        self.assertEqual(len(printed), len(kept))
        for got, expected in zip(printed, kept):
            if not re.match(r"-?[\d.]", expected):
                self.assertEqual(got, expected)
            elif float(expected) != 0:  # a network's loss, on a CPU that sums in another order
                self.assertAlmostEqual(float(got) / float(expected), 1, delta=0.1)

    def test_a_training_step_moves_and_keeps_what_the_page_says(self):
        printed = run("build/release/examples/lessons/quern_step --bytes --images 16").stdout
        self.assertGreater(len(printed), 300)
        self.assertTrue((LESSONS / "step/printed.txt").read_text().startswith(printed + "\nms "), printed)

    def test_lessons_prints_the_training_step(self):
        done = run("./dev lessons step")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("A training step on 1 images", done.stdout)
        self.assertIn("2 normalised by the reader", done.stdout)
        self.assertNotIn("GFLOP/s", done.stdout)

    def test_a_changed_source_or_page_is_told(self):
        page = LESSONS / "gemm/0_three_loops.md"
        text = page.read_text()
        self.assertIn("sum += a[i][p] * b[p][j]", text)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / page.name
            copy.write_text(text.replace("sum += a", "sum -= a"))
            (Path(folder) / "0_three_loops.cpp").write_text((LESSONS / "gemm/0_three_loops.cpp").read_text())
            self.assertEqual(pages.filled(copy), text)
            (Path(folder) / "0_three_loops.cpp").write_text("no marks")
            self.assertRaises(ValueError, pages.filled, copy)

    def test_files_are_short(self):
        for page in pages.all_pages():
            self.assertLessEqual(len(page.read_text().splitlines()), 150 if page.name == "README.md" else 120, page)
        for source in [*LESSONS.glob("*/*.cpp"), *LESSONS.glob("step/*.h")]:
            self.assertLessEqual(len(source.read_text().splitlines()), 150, source)
        self.assertLessEqual(len((LESSONS / "autograd/autograd.h").read_text().splitlines()), 200)

    def test_links_lead_to_files(self):
        for page in pages.all_pages():
            prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
            for link in re.findall(r"\]\((?!http)([^)#]+)", prose):
                self.assertTrue((page.parent / link).exists(), f"{page}: {link}")

    def test_commands_run(self):
        for page in pages.all_pages():
            for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S):
                with self.subTest(page.name, command=block):
                    done = run_block(block)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_step_that_is_asked_for_runs_the_network(self):
        losses = {}
        for name in ["", "lesson_gemm_1", "lesson_gemm_4", "lesson_gemm_8", "lesson_conv_1", "lesson_conv_4", "lesson_conv_7"]:
            with tempfile.TemporaryDirectory() as folder:
                report = Path(folder) / "train.json"
                program = f"build/release/examples/resnet50/resnet50 train --arch resnet18 --image-size 64 -b 2 --steps 2 --json {report}"
                done = run(f"QUERN_VERBOSE=1 QUERN_KERNEL={name} {program}")
                self.assertEqual(done.returncode, 0, done.stderr)
                losses[name] = json.loads(report.read_text())["loss"]
            ran = re.findall(r"^quern_verbose,conv2d_(\w+),([^,]+),", done.stdout, re.M)
            self.assertGreater(len(ran), 100)
            if name:
                self.assertEqual({kernel for _, kernel in ran}, {name})
                self.assertEqual({way for way, _ in ran}, {"fwd", "dgrad", "wgrad"})
        for name, loss in losses.items():  # of other orders of summation, forward and a step down
            self.assertEqual(len(loss), 2)
            for got, expected in zip(loss, losses[""]):
                self.assertAlmostEqual(got, expected, delta=1e-5 * expected, msg=name)

    def test_lessons_prints_tables_and_refuses_what_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(f"./dev lessons 1 --json {folder}/lessons.json")
            self.assertEqual(done.returncode, 0, done.stderr)
            measured = json.loads((Path(folder) / "lessons.json").read_text())
        self.assertEqual([row["step"] for row in measured["rows"]], [0, 1])
        self.assertIn("| 1 loop order | f32 | 1 |", done.stdout)
        self.assertIn("expected a step, 0 to 9, conv0 to conv8, conv or step, got '10'", run("./dev lessons 10").stderr)
        for wrong in ("conv9", "step1", "steps", "con", "''"):
            self.assertIn("conv or step, got", run(f"./dev lessons {wrong}").stderr)
        self.assertIn("expected all steps", run("./dev lessons --keep").stderr)
        if PYTHON:
            self.assertIn("--chart: expected steps of GEMM or", run("./dev lessons step --chart build/step.svg").stderr)

    def test_lessons_times_all_passes_of_a_convolution(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(f"./dev lessons conv --json {folder}/lessons.json --chart {folder}/lessons.svg")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual((Path(folder) / "lessons.svg").exists(), PYTHON is not None)
            conv = json.loads((Path(folder) / "lessons.json").read_text())["conv"]
        self.assertIn("| 4 batch-reduce GEMM |", done.stdout)
        self.assertEqual([(row["step"], row["pass"]) for row in conv["rows"]],
                         [(step, way) for step in range(9) for way in ("forward", "dgrad", "wgrad")])  # fmt: skip
        about = [row for row in conv["rows"] if row["about"]]
        self.assertEqual([row["pass"] for row in about], ["forward"] * 5 + ["dgrad", "wgrad", "forward", "forward"])
        before = next(row for row in conv["rows"] if row["step"] == 4 and row["pass"] == "dgrad")
        self.assertEqual(pages.conv_factor(conv["rows"], about[5]), about[5]["gflops"] / before["gflops"])
        self.assertIsNone(pages.conv_factor(conv["rows"], about[0]))

    def test_factors_are_over_the_step_before_in_the_same_precision(self):
        def row(step, dtype, gflops, emulated=False):
            return {"step": step, "dtype": dtype, "gflops": gflops, "emulated": emulated}

        rows = [row(5, "f32", 100), row(6, "bf16", 150), row(7, "bf16", 2, True), row(8, "f32", 190), row(8, "bf16", 300)]
        self.assertEqual([pages.factor(rows, r) for r in rows], [None, 1.5, None, 1.9, 2.0])


if __name__ == "__main__":
    unittest.main()
