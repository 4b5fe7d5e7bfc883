"""The page of a sweep: every picture is made, what is wrong in its files is told, and a browser shows it.

QUERN_RESNET50 names the program, whose own sums the traces are held to."""

import base64
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TESTS = Path(__file__).parent
BENCH = TESTS.parents[1] / "bench"
sys.path[:0] = [str(BENCH), str(TESTS)]

import browser  # noqa: E402
from compare import machine  # noqa: E402
from page import trace as traces  # noqa: E402

PROGRAM = os.environ.get("QUERN_RESNET50")
PNG = b"\x89PNG\r\n\x1a\n"


def run(script, *words, status=0):
    command = [sys.executable, str(BENCH / script), *map(str, words), "--quern", str(TESTS / "stand_in.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == status, f"status {done.returncode}: {done.stderr}"
    return done


class ReportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.sweep = Path(cls.folder.name) / "sweep.jsonl"
        threads = ",".join(str(n) for n in range(1, min(2, len(machine.cores())) + 1))
        both = ("--steps", "5", "--price-per-hour", "0.5", "--out", cls.sweep)
        run("sweep.py", "--mode", "train,infer", "--batch", "1,2", "--threads", threads, "--rounds", "2", *both)
        run("sweep.py", "--layout", "nchw,nhwc", "--isa", "avx2,amx,best", "--batch", "2", "--threads", "1", "--rounds", "1", *both)
        with open(cls.sweep, "a") as file:
            file.write('<script>alert("foreign")</script>\n{"quern_sweep": 1, "kind": "ro')
        cls.done = run("report.py", cls.sweep)
        cls.out = cls.sweep.with_name("sweep-report")
        cls.html = (cls.out / "index.html").read_text()

    def test_every_picture_is_made(self):
        modes, dtypes = ("train", "infer"), ("f32", "bf16")
        kinds = [f"{chart}-{m}-resnet50-224" for m in modes for chart in ("bars", "scaling", "latency")]
        traced = [f"{chart}-resnet50-{m}-{d}" for m in modes for d in dtypes for chart in ("shares", "roofline")]
        pictures = {path.stem: path.read_bytes() for path in self.out.glob("*.png")}
        self.assertEqual(len(pictures), len(kinds) + len(traced), sorted(pictures))
        for start in kinds + traced:
            name, = [name for name in pictures if name.startswith(start)]
            self.assertTrue(pictures[name].startswith(PNG) and len(pictures[name]) > 5000)
            self.assertIn(f'id="{name}"', self.html)
        embedded = re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", self.html)
        self.assertEqual(len(embedded), 2 * len(pictures))
        for svg in embedded:
            self.assertIn(b"<svg", base64.b64decode(svg))

    def test_the_page_is_one_file(self):
        self.assertEqual(re.findall(r'(?:src|href|srcset)="(?!data:)([^"]*)', self.html), [])

    def test_what_is_wrong_is_told(self):
        self.assertEqual(self.done.stderr.count("; passed over"), 2)
        self.assertEqual(self.html.count("; passed over"), 2)
        self.assertNotIn("<script>", self.html)
        self.assertIn("this CPU has no amx", self.html)

    def test_traces_are_taken_once(self):
        before = {path: path.stat().st_mtime_ns for path in self.out.glob("*.json")}
        self.assertEqual(len(before), 4)
        run("report.py", self.sweep)
        self.assertEqual({path: path.stat().st_mtime_ns for path in self.out.glob("*.json")}, before)

    def test_a_trace_may_be_named(self):
        good, bad = next(self.out.glob("*.json")), Path(self.folder.name) / "bad.json"
        bad.write_text('{"traceEvents": [{"ph": "X", "ts": NaN}]}')
        done = run("report.py", self.sweep, good, bad, "--out", Path(self.folder.name) / "named")
        self.assertIn("bad.json: expected a trace", done.stderr)
        self.assertEqual(len(list((Path(self.folder.name) / "named").glob("roofline*.png"))), 1)

    def test_no_sweep(self):
        self.assertIn("expected a file", run("report.py", "no-such-file", status=2).stderr)
        empty = Path(self.folder.name) / "empty.jsonl"
        empty.write_text("nothing\n")
        self.assertIn("expected rounds of a sweep, got none", run("report.py", empty, status=1).stderr)

    def test_self_times(self):
        trace = traces.read(next(self.out.glob("*.json")))
        self.assertAlmostEqual(sum(part.self_us for part in trace.parts.values()), trace.step_us)
        self.assertEqual(trace.parts["conv2d_fwd", "fc"].flop, 400000)
        self.assertAlmostEqual(trace.parts["conv2d_fwd", "fc"].self_us, 16)
        self.assertAlmostEqual(trace.parts[traces.NOWHERE].self_us, 200 - 6 * 16)

    @unittest.skipUnless(PROGRAM, "QUERN_RESNET50 is not set")
    def test_self_times_are_the_programs(self):
        path = Path(self.folder.name) / "trace.json"
        words = "train --arch resnet18 --image-size 32 -b 2 --steps 4 --amp --profile".split()
        subprocess.run([PROGRAM, *words, str(path)], check=True, stdout=subprocess.DEVNULL)
        trace, by_op = traces.read(path), {}
        for (op, _), part in trace.parts.items():
            by_op[op] = by_op.get(op, 0) + part.self_us
        for row in trace.summary["op"]:
            self.assertAlmostEqual(by_op.get(row["name"], 0), row["self_us"], delta=1e-3 * trace.step_us, msg=row["name"])
        self.assertAlmostEqual(sum(by_op.values()), trace.summary["step_us"], delta=1e-3 * trace.step_us)
        self.assertEqual(sum(p.flop for p in trace.parts.values()), sum(r["flop"] for r in trace.summary["op"]))

    @unittest.skipUnless(browser.PROGRAM, "no chromium")
    def test_in_a_browser(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        chromium = browser.Browser(folder.name)
        self.addCleanup(chromium.close)  # before the folder, in which it writes
        for dark in (False, True):
            chromium.set_dark(dark)
            chromium.open(self.out / "index.html")
            count = chromium.value("document.images.length")
            self.assertEqual(count, 14)
            widths = chromium.value("[...document.images].map(image => image.complete ? image.naturalWidth : -1)")
            self.assertTrue(all(width > 100 for width in widths), widths)
            self.assertEqual(chromium.value("document.images[0].currentSrc === document.images[0].src"), not dark)
            self.assertTrue(chromium.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))
            picture = chromium.screenshot()
            self.assertTrue(picture.startswith(PNG) and len(picture) > 100_000)
            if "SCREENSHOTS" in os.environ:
                (Path(os.environ["SCREENSHOTS"]) / f"{'dark' if dark else 'light'}.png").write_bytes(picture)
        self.assertEqual(chromium.complaints, [])


if __name__ == "__main__":
    unittest.main()
