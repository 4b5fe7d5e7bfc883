#!/usr/bin/env python3
"""Makes a page of a sweep: bars of layout, precision and ISA, lines over threads and batch, how long steps took; and of
traces: the share of each op in a step, and the roofline with a dot a layer.

    ./dev report build/sweep.jsonl                     build/sweep-report/index.html, and its pictures as PNG beside it
    ./dev report build/sweep.jsonl build/trace.json    with this trace of resnet50 --profile

Without traces of yours it takes some, if this is the machine of the sweep: one for each mode and precision, of the
point that the bars are of, in the layout that is fastest. They are kept beside the page, and not taken again. The page
is one file, which needs no network. bench/README.md tells how to read it.
"""

import argparse
import sys
from pathlib import Path

from sweeps import arguments, points, turns
from sweeps.journal import Journal
from sweeps.progress import Progress

try:
    from page import charts, html, measured, profiles
    from page import trace as traces
except ImportError as error:
    sys.exit(f"report: {error}; Debian: apt install python3-matplotlib, and run /usr/bin/python3 {__file__}")

TRACED = 3  # steps


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, metavar="SWEEP.jsonl")
    parser.add_argument("traces", type=Path, nargs="*", metavar="TRACE.json")
    parser.add_argument("--no-traces", action="store_true", help="takes none")
    parser.add_argument("--out", type=Path, metavar="DIR", help="[beside the sweep, SWEEP-report]")
    parser.add_argument("--price-per-hour", type=arguments.amount, metavar="P", help="[the sweep's]")
    parser.add_argument("--quern", metavar="PROGRAM", help="the program resnet50, to take traces with [built by ./dev build]")
    options = parser.parse_args()
    if not options.sweep.is_file():
        parser.error(f"expected a file of ./dev sweep, got {options.sweep}")
    options.out = options.out or options.sweep.with_name(options.sweep.stem + "-report")
    return options, parser


def to_trace(all_measured):
    """Of each mode, network and precision the fastest point at the batch that the bars show."""
    chosen = []
    for _, group in measured.kinds(all_measured):
        batch, threads = measured.base(group)
        best = {}
        for m in group:
            if (m["batch"], m["threads"], m["isa"], m["fused"]) == (batch, threads, None, True):
                if m["dtype"] not in best or m.speed > best[m["dtype"]].speed:
                    best[m["dtype"]] = m
        chosen += best.values()
    return chosen


def take_traces(chosen, options, parser, journal):
    """[(path, name, note)], taken now unless they are there."""
    own = argparse.Namespace(quern=options.quern, against=None)
    ((commit, program),) = arguments.programs(own, parser, journal).items()
    progress, found = Progress([1] * len(chosen)), []
    for m in chosen:
        name = points.label(m.point, short=True).replace(",", "")
        path = options.out / f"trace-{m['arch']}-{m['image_size']}-{name.replace(' ', '-')}-{commit}.json"
        progress.begin(f"trace: {name}")
        if not path.exists():
            more = ["--profile", str(path), "--profile-steps", str(TRACED)]
            try:
                turns.run(m.point, program, 2 + TRACED, more=more)
            except turns.Failed as why:
                progress.end(f"failed: {why}")
                print(f"report: no trace of {name}: {why}", file=sys.stderr)
                continue
        found.append((path, f"{m['arch']} {name}", f"Commit {commit}."))
        progress.end("done")
    return found


def main():
    options, parser = parse_arguments()
    journal = Journal(options.sweep)
    for sentence in journal.passed_over:
        print(f"report: {sentence}", file=sys.stderr)
    if not journal.rounds:
        sys.exit(f"report: {options.sweep}: expected rounds of a sweep, got none")
    options.out.mkdir(parents=True, exist_ok=True)
    machine = list(journal.machines.values())[-1]
    price = options.price_per_hour or machine.get("price_per_hour")
    every = [measured.Measured(point, rounds, price) for point, rounds in journal.all_rounds()]
    notes, shown = [], []

    def show(result):
        (notes if isinstance(result, str) else shown).append(result)

    for kind, group in measured.kinds(every):
        for chart in (charts.bars, charts.scaling, charts.latencies):
            show(chart(kind, group))

    found = [(path, path.stem, "") for path in options.traces]
    if not found and not options.no_traces:
        if turns.this_machine()["machine"] == machine["machine"]:
            found = take_traces(to_trace(every), options, parser, journal)
        else:
            notes.append("Traces: the sweep is of another machine. Take some there with resnet50 --profile, and name them.")
    for path, name, note in found:
        try:
            trace = traces.read(path, name)
        except traces.BadTrace as bad:
            print(f"report: {bad}; passed over", file=sys.stderr)
            notes.append(str(bad))
            continue
        trace.note = note
        show(profiles.shares(trace))
        show(profiles.roofline(trace, trace.peaks or turns.peaks() or machine.get("peaks")))

    failed = [f"{points.label(line['point'])}: {line['why']}" for line in journal.failed.values()]
    text = html.page(options.sweep.name, machine, every, price, shown, notes, failed, journal.passed_over)
    for picture in shown:
        (options.out / f"{picture.name}.png").write_bytes(picture.png)
    (options.out / "index.html").write_text(text)
    print(f"{options.out / 'index.html'}: {len(shown)} pictures, {len(text) >> 10} KiB")


if __name__ == "__main__":
    main()
