"""The page: one file with everything in it, for light and dark screens and for paper."""

import datetime
from html import escape

from sweeps import points

STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --weak: #6a6a6a; --line: #d9d9d9; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --weak: #a0a0a0; --line: #444; --page: #161616; } }
@media print { :root { color-scheme: light; --text: #000; --weak: #444; --line: #bbb; --page: #fff; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); }
body { max-width: 62em; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
figure { margin: 1em 0 2em; break-inside: avoid; } figure img { width: 100%; height: auto; }
figcaption, .weak { color: var(--weak); font-size: 0.9em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85em; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2em 0.6em; text-align: right; border-bottom: 1px solid var(--line); }
th { vertical-align: bottom; } td { white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1em 1em; } dt { color: var(--weak); } dd { margin: 0; }
"""


def machine_list(fields, commits, others):
    model = "/".join(str(n) for n in fields.get("family_model_stepping", []) if n)
    rows = {
        "CPU": f"{fields['cpu']}{f' (family/model/stepping {model})' if model else ''}, {fields['cores']} cores",
        "instructions": " ".join(fields.get("flags", [])),
        "memory": f"{fields['memory_mib'] / 1024:.1f} GiB" if "memory_mib" in fields else "",
        "kernel": fields.get("kernel", ""),
        "commit": ", ".join(commits),
        "measured": str(fields.get("time", ""))[:16].replace("T", " "),
        "other programs": "" if others is None else f"had up to {100 * others:.0f}% of the CPU during a round",
    }
    return "<dl>" + "".join(f"<dt>{k}</dt><dd>{escape(str(v))}</dd>" for k, v in rows.items() if v) + "</dl>"


def picture(p):
    return (
        f'<figure id="{p.name}"><h2>{escape(p.title)}</h2><picture>'
        f'<source media="screen and (prefers-color-scheme: dark)" srcset="{p.data_uri(p.dark)}">'
        f'<img alt="{escape(p.title)}. {escape(p.caption)}" src="{p.data_uri(p.light)}"></picture>'
        f"<figcaption>{escape(p.caption)}</figcaption></figure>"
    )


def table(measured, price):
    names = ["point", "images/s", "by round", "mean ms", "p50 ms", "p90 ms", "p99 ms", "steps", "rounds", "MiB"]
    names += ["$ per million images", "thousand images per $"] if price else []
    rows = []
    for m, name in zip(measured, points.labels([m.point for m in measured])):
        f, (low, high) = m.figures, m.spread()
        cells = [name, f"{m.speed:.1f}", f"{low:.1f}–{high:.1f}"]
        cells += [f"{f[name]:.2f}" for name in ("mean", "p50", "p90", "p99")]
        cells += [str(f["samples"]), str(f["rounds"]), f"{f['peak_mib']:.0f}"]
        cells += [f"{f['dollars_per_million_images']:.2f}", f"{f['thousand_images_per_dollar']:.1f}"] if price else []
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def listing(title, sentences):
    if not sentences:
        return ""
    return f"<h2>{title}</h2><ul>" + "".join(f"<li>{escape(s)}</li>" for s in sentences) + "</ul>"


def page(source, machine, measured, price, shown, notes, failed, passed_over):
    """`shown`: Pictures in order; the others are sentences."""
    commits = list(dict.fromkeys(m["commit"] for m in measured))
    shares = [r["share_of_others"] for m in measured for r in m.rounds if isinstance(r.get("share_of_others"), float)]
    body = [
        f"<h1>quern: {escape(source)}</h1>",
        machine_list(machine, commits, max(shares, default=None)),
        *map(picture, shown),
        listing("Not shown", notes),
        "<h2>Every point</h2>",
        '<p class="weak">Images/s are of the median of the rounds\' medians, after the steps that warm up; mean and percentiles'
        " of the timed steps of all rounds together.</p>",
        table(measured, price),
        listing("Failed", failed),
        listing("Lines that were passed over", passed_over),
        f'<p class="weak">Made {datetime.datetime.now():%Y-%m-%d %H:%M} by ./dev report.</p>',
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>quern: {escape(source)}</title><link rel="icon" href="data:,"><style>{STYLE}</style></head><body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )
