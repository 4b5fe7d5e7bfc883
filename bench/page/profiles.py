"""The pictures of a trace: the share of each op in a step, and how far each layer is from its roofs."""

import matplotlib
import numpy

from . import style
from .charts import round_ticks
from .trace import roofs

PASSES = {"fwd": "forward", "dgrad": "gradient of the input", "bwd_data": "gradient of the input",
          "wgrad": "gradient of the weights", "bwd_weights": "gradient of the weights"}  # fmt: skip
PASS_COLOURS = dict(zip([*dict.fromkeys(PASSES.values()), "other"], style.COLOURS))
HIGH = 18  # letters that a box is high
ALPHAS = (0.25, 0.62, 0.45, 0.28)  # of step, op, stage, layer


def stage(module):
    """layer1.0.conv2 → layer1; features.3.conv.0 → features.3"""
    words = module.split(".")
    return ".".join(words[:2] if len(words) > 2 and not words[0][-1:].isdigit() else words[:1]) or "(none)"


def shares(trace):
    """An icicle: a step, its ops, the stages of the network in each, their layers."""
    tree = {}
    for (op, module), part in trace.parts.items():
        tree.setdefault(op, {}).setdefault(stage(module), {})[module[len(stage(module)) + 1 :]] = part.self_us
    total = weight(tree)
    ops = sorted(tree, key=lambda op: -weight(tree[op]))

    def draw(colours):
        figure, ((axes,),) = style.figure(5.0)

        def box(x, width, level, name, colour):
            shape = matplotlib.patches.Rectangle((x, level), width, 0.96, facecolor=colour, alpha=ALPHAS[level], lw=0.7)
            shape.set_edgecolor(colours["page"])
            axes.add_patch(shape)
            text = f"{name} {width:.1f}%" if level == 1 else name
            middle = {"x": x + width / 2, "y": level + 0.48, "ha": "center", "va": "center"}
            if width >= 1.05 * len(text):  # percent of the picture that letters take
                axes.text(s=text, fontsize=8, **middle)
            elif width >= 1.7 and len(name) <= HIGH:
                axes.text(s=name, fontsize=6.5, rotation=90, **middle)

        def put(branches, names, x, level, colour):
            for name in names:
                width = 100 * weight(branches[name]) / total
                box(x, width, level, name, colour)
                if isinstance(branches[name], dict):
                    put(branches[name], sorted(branches[name]), x, level + 1, colour)
                x += width

        box(0, 100, 0, f"a step: {trace.step_us / trace.steps / 1e3:.2f} ms", colours["weak"])
        x = 0.0
        for place, op in enumerate(ops):
            put(tree, [op], x, 1, style.COLOURS[place % len(style.COLOURS)])
            x += 100 * weight(tree[op]) / total
        axes.set_xlim(0, 100)
        axes.set_ylim(4, 0)
        axes.set_yticks([0.5, 1.5, 2.5, 3.5], ["step", "op", "stage", "layer"])
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("% of the step's time")
        for side in ("left", "bottom"):
            axes.spines[side].set_visible(False)
        return figure

    told = ", ".join(f"{op} {100 * weight(tree[op]) / total:.1f}%" for op in ops[:8])
    caption = f"Self time, {trace.steps} steps. {told}. {trace.note}"
    return style.Picture(f"shares-{slug(trace)}", f"{trace.name}: where a step's time goes", caption, draw)


def weight(tree):
    return sum(map(weight, tree.values())) if isinstance(tree, dict) else tree


def layers(trace):
    """[(op, module, operations a byte, GFLOP/s, self µs a step)] of what multiplies."""
    return [
        (op, module, part.flop / part.bytes, 1e-3 * part.flop / part.self_us, part.self_us / trace.steps)
        for (op, module), part in trace.parts.items()
        if part.flop > 0 and part.bytes > 0 and part.self_us > 0
    ]


def pass_of(op):
    return next((name for end, name in PASSES.items() if op.endswith(end)), "other")


def roofline(trace, peaks):
    dots = layers(trace)
    if not dots:
        return f"{trace.name}: no op of it tells operations and bytes, so it has no roofline."
    known = roofs(peaks)
    bf16 = any(part.bf16 for part in trace.parts.values())

    def draw(colours):
        figure, ((axes,),) = style.figure(5.0)
        x, y = numpy.array([d[2] for d in dots]), numpy.array([d[3] for d in dots])
        if known:
            draw_roofs(axes, colours, *known, bf16, (x.min() / 2, x.max() * 5))
        slices = sum(d[4] for d in dots)
        for place, name in enumerate(PASS_COLOURS):
            its = [d for d in dots if pass_of(d[0]) == name]
            if its:
                look = {"color": PASS_COLOURS[name], "marker": style.MARKERS[place], "alpha": 0.65, "lw": 0.5}
                look |= {"edgecolors": colours["text"]}
                areas = [12 + 1500 * d[4] / slices for d in its]
                axes.scatter([d[2] for d in its], [d[3] for d in its], areas, **look)
                axes.scatter([], [], 36, label=name, **look)  # of the legend
        axes.set_xscale("log")
        axes.set_yscale("log")
        low, high = axes.get_xlim()
        style.plain(axes.xaxis, [t for t in round_ticks(low, high) if low <= t <= high])
        low, high = axes.get_ylim()
        style.plain(axes.yaxis, [t for t in round_ticks(low, high) if low <= t <= high])
        axes.set_xlabel("operations a byte (operands read or written once)")
        axes.set_ylabel("GFLOP/s")
        axes.grid()
        axes.legend(loc="lower right", title="a dot a layer; its area is its time")
        longest = sorted(dots, key=lambda d: -d[4])[:4]
        name_apart(figure, axes, colours, [(d[1] or d[0], (d[2], d[3])) for d in longest])
        return figure

    above = "" if known else " No peaks were measured here, so there are no roofs."
    named = "The four that take longest are named. Winograd's layers may lie above the roof: what they spare is counted."
    caption = f"{named}{above} {trace.note}"
    return style.Picture(f"roofline-{slug(trace)}", f"{trace.name}: roofline", caption, draw)


def name_apart(figure, axes, colours, named):
    """Writes names beside their dots, or as far below as it takes not to cover the name of another."""
    figure.canvas.draw()  # for the places of texts
    taken = []
    for name, at in named:
        for below in range(0, 200, 12):
            line = {"arrowprops": {"arrowstyle": "-", "lw": 0.5, "color": colours["weak"]}} if below else {}
            text = axes.annotate(name, at, textcoords="offset points", xytext=(6, 6 - below), fontsize=7.5,
                                 path_effects=style.halo(colours), **line)  # fmt: skip
            box = text.get_window_extent(figure.canvas.get_renderer())
            if not any(box.overlaps(other) for other in taken):
                break
            text.remove()
        taken.append(box)


def draw_roofs(axes, colours, arithmetic, memory, bf16, between):
    """Level: the peak of the arithmetic; slanted: bytes at the bandwidth of each level, up to there."""
    top = max(arithmetic["f32"], arithmetic["bf16"] if bf16 else 0)
    left, right = min(between[0], 0.3 * top / max(memory.values())), max(between[1], 3 * top / min(memory.values()))
    for place, (level, gbytes) in enumerate(reversed(memory.items())):
        axes.plot([left, top / gbytes], [gbytes * left, top], color=colours["weak"], lw=1.1, ls=style.DASHES[place % 4])
        axes.annotate(f"{level} {gbytes:.0f} GB/s", (left, gbytes * left), textcoords="offset points", xytext=(4, -2),
                      va="top", fontsize=8, path_effects=style.halo(colours))  # fmt: skip
    for dtype in ("f32", "bf16") if bf16 and arithmetic["bf16"] > 1.05 * arithmetic["f32"] else ("f32",):
        axes.axhline(arithmetic[dtype], color=style.DTYPE_COLOURS[dtype], lw=1.4, zorder=1)
        axes.annotate(f"{dtype} {arithmetic[dtype]:.0f} GFLOP/s", (right, arithmetic[dtype]), textcoords="offset points",
                      xytext=(-4, 3), ha="right", fontsize=8.5, path_effects=style.halo(colours))  # fmt: skip
    axes.set_xlim(left, right)


def slug(trace):
    return "".join(c if c.isalnum() else "-" for c in trace.name.lower())
