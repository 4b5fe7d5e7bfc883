#!/usr/bin/env python3
"""The reference: every public name is documented, links lead somewhere, it opens and is searched in a browser without a network."""

import contextlib
import io
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs"), str(ROOT / "tests/bench")]
import browser  # noqa: E402
import comments  # noqa: E402
import docs  # noqa: E402


def make(out, root=ROOT):
    """Status, and what was said to be wrong."""
    wrong = io.StringIO()
    with contextlib.redirect_stderr(wrong), contextlib.redirect_stdout(io.StringIO()):
        status = docs.main(["--out", str(out), "--root", str(root)])
    return status, wrong.getvalue()


class Site(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.status, cls.wrong = make(cls.folder.name)
        cls.site = Path(cls.folder.name) / "html"

    def test_every_public_name_is_documented_and_no_link_is_dead(self):
        self.assertEqual(self.wrong, "")
        self.assertEqual(self.status, 0)

    def test_pages_are_there(self):
        index = (self.site / "index.html").read_text()
        for line in ("tensor/     dtype, shape", "optim/      SGD, Adam"):  # the map of the house
            self.assertIn(line, index)
        for lesson in (ROOT / "examples/lessons").glob("**/*.md"):
            self.assertTrue((self.site / (str(lesson.relative_to(ROOT)).replace("/", "_").replace(".", "_") + ".html")).exists(), lesson)
        self.assertIn("conv2d: cross-correlation of images", (self.site / "ops_2conv2d_8h.html").read_text())
        self.assertIn("x       [N, C, H, W], f32, bf16 or f64", (self.site / "namespacequern.html").read_text())
        self.assertIn(">quern/nn/conv2d.h</a>", (self.site / "classquern_1_1nn_1_1Conv2d.html").read_text())
        self.assertNotIn("Impl", (self.site / "classquern_1_1Tensor.html").read_text())

    @unittest.skipUnless(browser.PROGRAM, "no chromium")
    def test_browser_shows_and_searches_it(self):
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        chromium = browser.Browser(folder.name)
        self.addCleanup(chromium.close)  # before the folder, in which it writes
        pages = ["classquern_1_1Tensor.html", "examples_lessons_gemm_3_packing_md.html", "ops_conv2d_cpp.html", "index.html"]
        for page in pages:
            chromium.open(self.site / page)
            self.assertGreater(chromium.value("document.querySelector('.contents').innerText.length"), 500, page)
        chromium.value("document.getElementById('MSearchField').value = 'conv2d'; searchBox.OnSearchFieldChange({keyCode: 68}); 0")
        found = ""
        while "Conv2dOptions" not in found:  # in a frame, a moment later; the browser's own limit of time ends it
            snapshot = chromium.ask("DOMSnapshot.captureSnapshot", computedStyles=[])
            shown = {text for document in snapshot["documents"][1:] for text in document["layout"]["text"] if text >= 0}
            found = " ".join(snapshot["strings"][text] for text in shown)
        self.assertIn("conv2d.h", found)
        self.assertNotIn("Linear", found)
        self.assertEqual(chromium.complaints, [])


class Complaints(unittest.TestCase):
    """A small tree of its own, with what must not be in one."""

    def complaints(self, header="", page=""):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "tree"
            for name, text in {
                "quern.h": '// All.\n#pragma once\n#include "quern/tensor/box.h"\n',
                "tensor/box.h": "// Boxes.\n#pragma once\n/// All.\nnamespace quern {\n/// A box.\nstruct Box {};\n" + header + "}\n",
                "README.md": "# quern\n\n## The house\n\n```\ntensor/\n```\n",
                "docs/main.md": "# quern\n\n<!-- house -->\n\n[It](../README.md#the-house), [source](../tensor/box.cpp)\n" + page,
                "tensor/box.cpp": "int main() {}\n",
            }.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return make(Path(folder) / "out", root)

    def test_a_tree_without_fault_passes(self):
        self.assertEqual(self.complaints("/// A lid.\nint lid();\nint lid(int size);\n"), (0, ""))

    def test_an_undocumented_name_is_told(self):
        for header, name in {
            "int lid();\n": "lid()",
            "struct Lid {\n  /// In cm.\n  int size;\n};\n": "Compound quern::Lid",
            "enum class Lid { shut, open };\n": "Lid (enumeration)",
            "/// Two.\nstruct Pair {\n  int a;  ///< one\n  int b;\n};\n": "b (variable)",
            "/// A lid.\nint lid();\n\nint lid(int size);\n": "lid(int size)",
        }.items():
            status, wrong = self.complaints(header)
            self.assertEqual(status, 1)
            self.assertRegex(wrong, rf"^tensor/box.h:\d+: warning: .*{re.escape(name)}.* is not documented.\n$")

    def test_a_link_to_nothing_is_told(self):
        status, wrong = self.complaints(page="[Heading](../README.md#the-hut)\n")
        self.assertEqual(status, 1)
        self.assertIn("README_md-the-hut", wrong)
        self.assertRaisesRegex(ValueError, "no ../tensor/lid.h", self.complaints, page="[File](../tensor/lid.h)\n")

    def test_links_may_be_broken_across_lines(self):
        self.assertEqual(self.complaints(page="[The\nhouse](../README.md#the-house), and\n\n```\n[a](b)\n```\n"), (0, ""))

    def test_code_may_have_a_quote_in_it(self):
        self.assertEqual(self.complaints(page="\n\n`say 'yes'` and [the house](../README.md#the-house)\n"), (0, ""))

    def test_markup_that_shows_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "index.html").write_text('@ref x <div class="fragment">@code</div><!-- fragment -->')
            self.assertEqual(docs.raw_markup(Path(folder)), ["index.html: @ref in the text"])

    def test_dead_links_of_a_site_are_told(self):
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder)
            (site / "search").mkdir()
            (site / "a.html").write_text('<a id="x" href="#y"></a><a href="b.html"></a><script src="http://c/d.js"></script><a href="http://c"></a>')
            (site / "search/all_0.js").write_text("['a',['../a.html#x',1,'']],['b',['../a.html#z',1,'']]")
            self.assertEqual(docs.dead_links(site), [
                "a.html: dead link to #y", "a.html: dead link to b.html", "a.html: loads http://c/d.js", "all_0.js: dead link to a.html#z"])  # fmt: skip


class Comments(unittest.TestCase):
    def test_lines_stay_where_they_are(self):  # by which warnings name them, and the sources are shown
        for header in docs.public_headers(ROOT):
            text = (ROOT / header).read_text()
            read = comments.filtered(text, header).splitlines()
            for before, after in zip(text.splitlines(), read):
                for word in re.findall(r"\w+", before)[:1]:
                    self.assertTrue(word in after or after == "" or word == "pragma", f"{header}: {before!r} became {after!r}")


if __name__ == "__main__":
    sys.exit("no doxygen") if shutil.which("doxygen") is None else unittest.main()
