"""What the options of sweep.py and tables.py have in common."""

import argparse
import math
import shutil
import subprocess
import sys

from compare import machine

from . import turns


def some_of(choices):
    """A comma-separated list of these."""
    known = {str(choice): choice for choice in choices}

    def parse(text):
        unknown = [word for word in text.split(",") if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"expected some of {','.join(known)}, got {','.join(unknown)}")
        return [known[word] for word in dict.fromkeys(text.split(","))]

    return parse


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(text)


def positives(text):
    return [positive(word) for word in dict.fromkeys(text.split(","))]


def amount(text):
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def add_common(parser):
    parser.add_argument("--price-per-hour", type=amount, metavar="P", help="what the machine costs, in dollars")
    parser.add_argument("--against", metavar="COMMIT", help="takes turns with this commit or tag, built in build/against")
    parser.add_argument("--quern", metavar="PROGRAM", help="the program resnet50 [built by ./dev build]")


def programs(options, parser, journal):
    """{commit: program}, this tree's first."""
    if options.quern and not shutil.which(options.quern):
        parser.error(f"--quern: expected a program, got {options.quern}")
    program = options.quern or machine.build("resnet50", "release", "examples/resnet50")
    found = {turns.commit_of(shutil.which(program), journal): program}
    if options.against:
        found |= [_older(options.against, parser)]
    return found


def _older(name, parser):
    """(commit, its program), from a copy of that tree."""

    def git(*words):
        return subprocess.run(["git", "-C", machine.ROOT, *words], capture_output=True, text=True)

    found = git("rev-parse", "--short", "--verify", "--quiet", f"{name}^{{commit}}")
    if found.returncode != 0:
        parser.error(f"--against: expected a commit or tag of this repository, got {name}")
    commit = found.stdout.strip()
    tree = machine.ROOT / "build" / "against" / commit
    program = tree / "build" / "release" / "examples" / "resnet50" / "resnet50"
    if not (tree / "CMakeLists.txt").exists():
        tree.mkdir(parents=True, exist_ok=True)
        archive = git("archive", "-o", str(tree / "tree.tar"), commit)
        if archive.returncode != 0:
            sys.exit(archive.stderr.strip())
        subprocess.run(["tar", "-xf", "tree.tar"], cwd=tree, check=True)
        (tree / "tree.tar").unlink()
    print(f"building {commit} in {tree}", file=sys.stderr)
    for words in (["--preset", "release"], ["--build", "build/release", "--target", "resnet50"]):
        if subprocess.run(["cmake", *words], cwd=tree, stdout=subprocess.DEVNULL).returncode != 0:
            sys.exit(f"{commit}: cmake {' '.join(words)} failed in {tree}")
    return commit, str(program)


def default_out(name):
    return machine.ROOT / "build" / f"{name}.jsonl"
