#!/usr/bin/env python3
"""The reference of quern as a site: every public name, the README, the lessons, and the sources that they link to.

    docs.py [--out build/docs]      writes build/docs/html, which needs neither a server nor a network

Ends with status 1, and says why, where Doxygen has a warning (a public name without a comment is one) or a link is dead.
What is public is what quern.h, nn/nn.h, optim/optim.h and, by folder, ops/ops.h give. comments.py tells how comments are read.
"""

import argparse
import html.parser
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


def public_headers(root):
    names = [name for name in ("quern.h", "nn/nn.h", "optim/optim.h") if (root / name).exists()]
    given = {include for name in names for include in re.findall(r'^#include "quern/(.*)"$', (root / name).read_text(), re.M)}
    given.discard("ops/ops.h")  # which the build makes of these:
    given.update(str(path.relative_to(root)) for folder in ("ops", "ops/fused") for path in (root / folder).glob("*.h"))
    return sorted(given.union(names))


class Pages:
    """Markdown as Doxygen is to read it. What a page links to becomes a page, too: other pages, files, folders."""

    def __init__(self, root, headers):
        self.root, self.headers = root, headers
        self.texts, self.sources, self.folders = {}, [], []
        self.below = set()  # pages that have a place below another one

    def add_all(self, first):
        self.below.add(first)
        waiting = [first]
        while waiting:  # breadth first: a page is below the first one that links to it
            path = waiting.pop(0)
            if self.name(path) not in self.texts:
                waiting += self.add(path)
        listed = "".join(f"- @subpage {self.name(path)}\n" for path in sorted(self.sources + self.folders))
        self.texts["sources"] = f"# Sources that are linked to {{#sources}}\n\n{listed}"

    def name(self, path):
        if path == self.root / "docs/main.md":
            return "mainpage"
        return re.sub(r"\W", "_", str(path.relative_to(self.root)))

    def add(self, path):
        """The page of a file or folder; returns what it links to."""
        title, links = str(path.relative_to(self.root)), []
        if path.is_dir():
            self.folders.append(path)
            found = sorted(child for child in path.iterdir() if child.is_file())
            body = "\n".join(f"- [{child.name}]({child.name})" for child in found)
            text = self.rewritten(path / "README.md", body, links)
            heading = title + "/"
        elif path.suffix == ".md":
            heading, text = re.fullmatch(r"# (.*?)\n(.*)", path.read_text(), re.S).groups()
            heading = "README" if path == self.root / "README.md" else heading
            text = self.rewritten(path, re.sub(r"<!-- (?!house).*? -->\n", "", text), links)
        else:
            self.sources.append(path)
            heading, text = title, f"@includelineno {title}"
        self.texts[self.name(path)] = f"# {heading} {{#{self.name(path)}}}\n\n{text}\n"
        return links

    def rewritten(self, path, text, links):
        """Links by Doxygen's names, headings that can be linked to, the README's map for its mark; code as it is."""

        def link(found):
            words, target = found[1].replace("\n", " "), found[2]
            if re.match(r"\w+:", target):
                return found[0]
            file, _, heading = target.partition("#")
            to = (path.parent / file).resolve() if file else path
            if not to.exists():
                raise ValueError(f"{path}: no {target}")
            if str(to.relative_to(self.root)) in self.headers:
                return f"[{words}](@ref {to.relative_to(self.root)})"
            links.append(to)
            if to not in self.below and to.suffix == ".md" and not heading:
                self.below.add(to)
                return f'@subpage {self.name(to)} "{words}"'
            return f"[{words}](@ref {self.name(to)}{'-' + heading if heading else ''})"

        def prose(part):
            part = LINK.sub(link, part)
            part = re.sub(r"(`+)([^`]+)\1", r"``\2``", part)  # in one, a ' would end what a ` began
            return re.sub(r"^(##+ )(.*)$", lambda m: f"{m[0]} {{#{self.name(path)}-{slug(m[2])}}}", part, flags=re.M)

        if "<!-- house -->" in text:
            text = text.replace("<!-- house -->", self.house())
        parts, end = [], 0
        for block in FENCE.finditer(text):
            parts += [prose(text[end : block.start()]), re.sub(r"\A```(?:sh|cmake)?$", "```{.unparsed}", block[0], flags=re.M)]
            end = block.end()
        return "".join([*parts, prose(text[end:])])

    def house(self):
        return re.search(r"^## The house\n\n(```\n.*?^```\n)", (self.root / "README.md").read_text(), re.M | re.S)[1]

    def write(self, folder):
        for name, text in self.texts.items():
            (folder / f"{name}.md").write_text(text)


def slug(heading):
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def doxygen(root, out):
    """Makes the site; returns what Doxygen warns of."""
    folder = out / "pages"
    for old in (folder, out / "html"):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir(parents=True)
    include = out / "include"  # headers by the names that programs include them by
    include.mkdir(exist_ok=True)
    (include / "quern").unlink(missing_ok=True)
    (include / "quern").symlink_to(root)
    headers = public_headers(root)
    pages = Pages(root, headers)
    pages.add_all(root / "docs/main.md")
    pages.write(folder)
    log = out / "warnings.txt"
    version = re.search(r"VERSION ([\d.]+) DESC", (ROOT / "CMakeLists.txt").read_text())[1]
    settings = {
        "PROJECT_NUMBER": version,
        "OUTPUT_DIRECTORY": out,
        "INPUT": " ".join(f'"{path}"' for path in [folder, *(include / "quern" / header for header in headers)]),
        "FILTER_PATTERNS": f'*.h="{sys.executable} -S {ROOT}/docs/comments.py"',
        "STRIP_FROM_PATH": include / "quern",
        "STRIP_FROM_INC_PATH": include,
        "EXAMPLE_PATH": " ".join(f'"{path}"' for path in pages.sources),
        "WARN_LOGFILE": log,
    }
    text = (ROOT / "docs/Doxyfile").read_text() + "".join(f"{key} = {value}\n" for key, value in settings.items())
    done = subprocess.run(["doxygen", "-"], input=text, text=True, cwd=root, capture_output=True)
    return [line.replace(f"{include}/quern/", "") for line in log.read_text().splitlines()] + ([done.stderr] if done.returncode else [])


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids.update(values[key] for key in ("id", "name") if values.get(key))
        if values.get("href"):
            (self.loads if tag == "link" else self.links).append(values["href"])
        if not values.get("src", "javascript:").startswith("javascript:"):
            self.loads.append(values["src"])


def dead_links(site):
    """Links within a site that lead nowhere, also those that its search shows, and what it would load from elsewhere."""
    pages = {path.name: Links(path.read_text()) for path in site.glob("*.html")}
    wrong = []
    for name, page in pages.items():
        wrong += [f"{name}: loads {load}" for load in page.loads if re.match(r"\w+:|//", load) or not (site / load).exists()]
        for link in page.links:
            if re.match(r"\w+:", link):
                continue
            file, _, anchor = urllib.parse.unquote(link).partition("#")
            file = file or name
            if not (site / file).exists() or (anchor and file in pages and anchor not in pages[file].ids):
                wrong.append(f"{name}: dead link to {link}")
    for path in (site / "search").glob("*.js"):
        for file, anchor in re.findall(r"\['\.\./([^'#]+)#?([^']*)'", path.read_text()):
            if file not in pages or (anchor and anchor not in pages[file].ids):
                wrong.append(f"{path.name}: dead link to {file}#{anchor}")
    return sorted(set(wrong))


def raw_markup(site):
    """Commands that Doxygen did not take for any, on pages of text."""
    wrong = []
    for path in [site / "index.html", *sorted(site.glob("*_md.html"))]:
        prose = re.sub(r'<div class="fragment">.*?</div><!-- fragment -->', "", path.read_text(), flags=re.S)
        wrong += [f"{path.name}: {found} in the text" for found in re.findall(r"@(?:code|endcode|section|ref|subpage)\b", prose)]
    return wrong


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/docs", help="a folder, which gets html/")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)  # of another tree, for tests
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    wrong = doxygen(options.root.resolve(), out) + dead_links(out / "html") + raw_markup(out / "html")
    for line in wrong:
        print(line, file=sys.stderr)
    print(out / "html/index.html")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
