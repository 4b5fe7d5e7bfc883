"""The pictures of a sweep: bars, lines over threads and batch, and how long steps took. Each takes the points of one
mode and network, and returns a Picture, or a sentence why there is none."""

import numpy

from . import measured, style

LINES = 8  # at most, in a picture of latencies


def bars(kind, group):
    """Layout × precision × ISA, at one batch and number of threads."""
    batch, threads = measured.base(group)
    shown = [m for m in group if (m["batch"], m["threads"]) == (batch, threads)]
    rows = {}
    for m in shown:
        rows.setdefault(measured.variants(m, group), {})[m["dtype"]] = m
    dtypes = sorted({m["dtype"] for m in shown}, key=measured.PRECISIONS.get)
    best = max(m.spread()[1] for m in shown)

    def draw(colours):
        count = sum(map(len, rows.values()))
        figure, ((axes,),) = style.figure(1.0 + 0.27 * count + 0.22 * len(rows))
        y, ticks = 0.0, []
        for its in rows.values():
            first = y
            for dtype in (d for d in dtypes if d in its):
                m = its[dtype]
                low, high = m.spread()
                axes.barh(y, m.speed, 0.86, color=style.DTYPE_COLOURS[dtype])
                axes.errorbar(m.speed, y, xerr=[[m.speed - low], [high - m.speed]], color=colours["text"], capsize=2.5, lw=1)
                axes.text(high + best * 0.012, y, f"{m.speed:.1f}  {dtype}", va="center", ha="left", fontsize=9)
                y += 1
            ticks.append((first + y - 1) / 2)
            y += 0.8
        axes.set_yticks(ticks, rows)
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xlim(0, best * 1.16)
        axes.set_xlabel("images/s (more is better)")
        axes.grid(axis="x")
        return figure

    caption = f"Batch {batch}, {threads} thread{'s' * (threads != 1)}. Lines: from the slowest to the fastest round."
    return style.Picture(name_of("bars", kind), f"{measured.title(kind)}: layout, precision, ISA", caption, draw)


def scaling(kind, group):
    """Images/s over threads at one batch, and over batch on one number of threads."""
    batch, threads = measured.base(group)
    over = {"threads": ("batch", batch), "batch": ("threads", threads)}
    panels = []
    for axis, (fixed, value) in over.items():
        its = [m for m in group if m[fixed] == value]
        if len({m[axis] for m in its}) > 1:
            panels.append((axis, f"batch {value}" if fixed == "batch" else f"{value} thread{'s' * (value != 1)}", its))
    if not panels:
        return f"{measured.title(kind)} over threads and batch: for that, sweep with some of each (--batch 1,16 --threads 1,2)."

    def draw(colours):
        figure, (row,) = style.figure(3.6, len(panels))
        for axes, (axis, fixed, its) in zip(row, panels):
            ticks = sorted({m[axis] for m in its})
            for dtype, (name, line) in measured.of_the_fastest(its).items():
                line = sorted(line, key=lambda m: m[axis])
                place, colour = measured.PRECISIONS[dtype], style.DTYPE_COLOURS[dtype]
                x, y = [m[axis] for m in line], [m.speed for m in line]
                low, high = zip(*(m.spread() for m in line))
                label = f"{dtype} {name}"
                axes.errorbar(x, y, [numpy.subtract(y, low), numpy.subtract(high, y)], label=label, color=colour,
                              marker=style.MARKERS[place], ls=style.DTYPE_DASHES[dtype], capsize=2.5, lw=1.6, ms=5)  # fmt: skip
                if axis == "threads" and len(x) > 1:
                    axes.plot(x, [y[0] * n / x[0] for n in x], color=colours["weak"], lw=0.9, ls=(0, (1, 2)), zorder=1)
            axes.set_xscale("log", base=2)
            style.plain(axes.xaxis, ticks)
            axes.set_xlim(ticks[0] / 1.15, ticks[-1] * 1.15)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("threads" if axis == "threads" else "batch (images a step)")
            axes.set_ylabel("images/s")
            axes.set_title(f"over {axis}, {fixed}")
            axes.grid()
            axes.legend()
        return figure

    dotted = " Dotted: as many times faster as there are threads." if panels[0][0] == "threads" else ""
    caption = f"Of each precision the variant that is fastest most; bars from the slowest to the fastest round.{dotted}"
    return style.Picture(name_of("scaling", kind), f"{measured.title(kind)}: over threads and batch", caption, draw)


def latencies(kind, group):
    """Which share of the steps took how long at most."""
    _, threads = measured.base(group)
    its = [m for m in group if m["threads"] == threads]
    chosen = [m for _, line in measured.of_the_fastest(its).values() for m in line]
    batches = sorted({m["batch"] for m in chosen})
    shown = sorted(chosen, key=lambda m: (batches.index(m["batch"]), measured.PRECISIONS[m["dtype"]]))[:LINES]

    def draw(colours):
        figure, (axes, below) = style.figure_with_legend(3.6, len(shown))
        for m in shown:
            times = numpy.sort(m.steps)
            share = 100 * numpy.arange(1, len(times) + 1) / len(times)
            place = batches.index(m["batch"])
            told = ", ".join(f"p{p} {three_digits(m.figures[f'p{p}'])}" for p in (50, 90, 99))
            name = f"{m['dtype']} {measured.variants(m, its)} batch {m['batch']}: {told} (of {len(times)})"
            axes.step([times[0], *times], [0, *share], where="post", label=name,
                      color=style.DTYPE_COLOURS[m["dtype"]], ls=style.DASHES[place % len(style.DASHES)], lw=1.6)  # fmt: skip
        for p in (50, 90, 99):
            axes.axhline(p, color=colours["weak"], lw=0.8, ls=(0, (1, 2)), zorder=1)
        axes.set_yticks([0, 25, 50, 75, 90, 99], [f"{n}" for n in (0, 25, 50, 75, 90, 99)])
        axes.set_ylim(0, 101)
        low, high = min(min(m.steps) for m in shown), max(max(m.steps) for m in shown)
        if high > 3 * low:
            axes.set_xscale("log")
            style.plain(axes.xaxis, round_ticks(low, high))
        axes.set_xlabel("milliseconds a step")
        axes.set_ylabel("% of steps within")
        axes.grid(axis="x")
        below.legend(*axes.get_legend_handles_labels(), loc="upper center", ncols=2, fontsize=8.5)
        return figure

    more = f" {len(chosen) - LINES} more lines are left out." if len(chosen) > LINES else ""
    caption = f"{threads} thread{'s' * (threads != 1)}; all timed steps of all rounds.{more}"
    return style.Picture(name_of("latency", kind), f"{measured.title(kind)}: how long steps take", caption, draw)


def name_of(chart, kind):
    return "-".join([chart, *map(str, kind)])


def three_digits(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def round_ticks(low, high):
    """1, 2, 5, 10, ... from low to high, thinned out to ten; at least the nearest to either end."""
    steps = [m * 10.0**e for e in range(-4, 8) for m in (1, 2, 5)]
    ticks = [t for t in steps if low / 1.5 <= t <= high * 1.5]
    return ticks if len(ticks) <= 10 else [t for t in ticks if numpy.log10(t) % 1 == 0]
