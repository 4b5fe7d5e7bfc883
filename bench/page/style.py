"""How pictures look, on light pages, on dark ones and on paper, in colours that the colour-blind tell apart (Okabe, Ito)."""

import base64
import io

import matplotlib

matplotlib.use("Agg")
from matplotlib import patheffects, pyplot  # noqa: E402

DTYPE_COLOURS = {"f32": "#0072B2", "high": "#009E73", "medium": "#CC79A7", "bf16": "#E69F00"}
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#B5A900")
DASHES = ("-", "--", "-.", ":")
DTYPE_DASHES = {"f32": "-", "high": ":", "medium": "-.", "bf16": "--"}
MARKERS = "osD^vPX*"
WIDTH = 8.2  # inches

COLOURS_OF_PAPER = {"text": "#1a1a1a", "weak": "#6a6a6a", "grid": "#d9d9d9", "page": "#fefefe"}
COLOURS_OF_SCREENS = {"text": "#e6e6e6", "weak": "#a0a0a0", "grid": "#444444", "page": "#161616"}  # dark ones


def context(colours):
    return matplotlib.rc_context({
        "text.color": colours["text"],
        "axes.labelcolor": colours["text"],
        "axes.edgecolor": colours["weak"],
        "xtick.color": colours["text"],
        "ytick.color": colours["text"],
        "grid.color": colours["grid"],
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "font.size": 9.5,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "figure.constrained_layout.use": True,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "svg.hashsalt": "quern",
    })  # fmt: skip


class Picture:
    """A chart as SVG for light and dark pages, and as PNG, which has its title in it. `draw(colours)` returns its figure."""

    def __init__(self, name, title, caption, draw):
        self.name, self.title, self.caption = name, title, caption
        with context(COLOURS_OF_PAPER):
            chart = draw(COLOURS_OF_PAPER)
            self.light = self._saved(chart, format="svg", facecolor="none", metadata={"Date": None})
            chart.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
            self.png = self._saved(chart, format="png", facecolor="white", dpi=160)
            pyplot.close(chart)
        self.dark = self.light
        for name in COLOURS_OF_PAPER:
            self.dark = self.dark.replace(COLOURS_OF_PAPER[name].encode(), COLOURS_OF_SCREENS[name].encode())

    @staticmethod
    def _saved(chart, **how):
        data = io.BytesIO()
        chart.savefig(data, **how)
        return data.getvalue()

    @staticmethod
    def data_uri(svg):
        return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def figure(height, columns=1, **more):
    return pyplot.subplots(1, columns, figsize=(WIDTH, height), squeeze=False, **more)


def figure_with_legend(height, entries):
    """Axes, and room for a legend of two columns below them."""
    room = 0.25 + 0.17 * ((entries + 1) // 2)
    ratios = {"height_ratios": [height, room]}
    made, axes = pyplot.subplots(2, 1, figsize=(WIDTH, height + room), gridspec_kw=ratios)
    axes[1].axis("off")
    return made, axes


def halo(colours):
    """For letters on dots and lines."""
    return [patheffects.withStroke(linewidth=2.5, foreground=colours["page"])]


def plain(axis, ticks):
    """A logarithmic axis with these ticks, as numbers."""
    axis.set_major_locator(matplotlib.ticker.FixedLocator(ticks))
    axis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())
