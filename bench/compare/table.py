"""What a comparison shows: lines as it goes, a table at the end, and the table of README.md."""

import datetime

from . import machine
from .rows import VARIANTS

BEGIN, END = "<!-- compare_pytorch: begin -->", "<!-- compare_pytorch: end -->"


def label(row):
    layout = row["layout"].replace("_", "-")
    return f"{row['mode']} {row['dtype']} {layout} batch {row['batch']}, {row['threads']} threads"


def row_lines(record):
    """For a terminal: an engine a line."""
    lines = []
    for name, engine in record["engines"].items():
        title = "quern" if name == "quern" else VARIANTS[name]
        if "median_ms" not in engine:
            lines.append(f"  {title:26} {engine.get('failed', 'not run')}")
            continue
        text = f"  {title:26} {engine['samples_per_second']:8.2f} img/s {engine['median_ms']:9.1f} ms"
        text += f" {engine['peak_mib']:7.0f} MiB"
        if name != "quern" and "ratio" in record:
            text += f"   quern ÷ it {engine['median_ms'] / record['engines']['quern']['median_ms']:.2f}"
        lines.append(text)
    if "ratio" in record:
        low, high = record["ratio_range"]
        lines.append(f"  ratio {record['ratio']:.2f} (by round {low:.2f} to {high:.2f})")
    return "\n".join(lines)


def markdown(report):
    rows = [
        "| | layout | batch | threads | quern, img/s | best peer, img/s | | **quern ÷ peer** (by round) | memory, MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for record in report["rows"]:
        quern, best = record["engines"]["quern"], record.get("best_peer")
        what = {"train": "training", "infer": "inference"}[record["mode"]] + " " + record["dtype"]
        cells = [what, record["layout"].replace("_", "-"), str(record["batch"]), str(record["threads"])]
        cells.append(f"{quern['samples_per_second']:.1f}" if "median_ms" in quern else "–")
        if best:
            peer, (low, high) = record["engines"][best], record["ratio_range"]
            cells += [f"{peer['samples_per_second']:.1f}", VARIANTS[best]]
            cells.append(f"**{record['ratio']:.2f}** ({low:.2f}–{high:.2f})")
            cells.append(f"{quern['peak_mib']:.0f} ÷ {peer['peak_mib']:.0f} = {record['memory_ratio']:.2f}")
        else:
            cells += ["–", "none ran", "–", f"{quern['peak_mib']:.0f}"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def provenance(report):
    """The machine, the day, the versions, and how quiet it was."""
    m, versions = report["machine"], {}
    for record in report["rows"]:
        for name, engine in record["engines"].items():
            if "version" in engine:
                versions[VARIANTS[name].split(" ")[0] if "PyTorch" in VARIANTS[name] else VARIANTS[name]] = engine["version"]
    isas = sorted({r["engines"]["quern"]["isa"] for r in report["rows"]})
    with_ = ", ".join(f"{name} {version}" for name, version in versions.items()) or "no other engine"
    day = datetime.date.fromisoformat(report["date"][:10])
    return (
        f"{m['cpu']} (family {m['family_model_stepping'][0]}, model {m['family_model_stepping'][1]}), {m['cores']} cores,"
        f" kernels for {', '.join(isas)}; {day:%-d %B %Y}, commit {report['commit']}; {with_},"
        f" on {'tcmalloc' if report['malloc'] else 'glibc malloc'}; medians of"
        f" {report['rounds']} rounds of {report['turn']}; other programs had {100 * report['share_of_others']:.0f}% of the CPU."
    )


def update_readme(report):
    path = machine.ROOT / "README.md"
    head, begin, rest = path.read_text().partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"compare_pytorch: {path}: expected the lines {BEGIN} and {END}")
    path.write_text(f"{head}{BEGIN}\n{provenance(report)}\n\n{markdown(report)}\n{END}{tail}")
