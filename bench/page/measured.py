"""The points of a sweep with their figures, and which of them a chart is of."""

import statistics
from collections import Counter

from sweeps import figures, points

PRECISIONS = {name: place for place, name in enumerate(points.DTYPES)}


class Measured:
    def __init__(self, point, rounds, price):
        self.point, self.rounds = point, rounds
        self.figures = figures.of(rounds, price)
        self.steps = [ms for r in rounds for ms in figures.timed(r)]
        self.isa = self.figures["isa"]  # that ran

    def __getitem__(self, name):
        return self.point[name]

    @property
    def speed(self):
        return self.figures["images_per_second"]

    def spread(self):
        """The speeds of the slowest and of the fastest round."""
        return min(self.figures["by_round"]), max(self.figures["by_round"])


def kinds(measured):
    """What is never in one chart: [((mode, arch, image_size), its points)]."""
    groups = {}
    for m in measured:
        groups.setdefault((m["mode"], m["arch"], m["image_size"]), []).append(m)
    return list(groups.items())


def title(kind):
    mode, arch, size = kind
    return f"{'Training' if mode == 'train' else 'Inference'} of {arch} at {size}×{size}"


def base(group):
    """The batch and number of threads that most points have; of equals the largest."""
    counts = Counter((m["batch"], m["threads"]) for m in group)
    return max(counts, key=lambda pair: (counts[pair], pair[1], pair[0]))


def variants(m, group):
    """What tells a point from others of its group, beside mode, dtype, batch and threads, in words."""
    words = [m["layout"].upper()]
    if len({other["isa"] for other in group}) > 1:
        words.append(m.isa)
    if len({other["fused"] for other in group}) > 1:
        words.append("fused" if m["fused"] else "op by op")
    if len({other["workers"] for other in group}) > 1:
        words.append("loads in the step" if not m["workers"] else f"{m['workers']} workers")
    for name in ("steps", "commit"):
        if len({other[name] for other in group}) > 1:
            words.append(f"{m[name]} steps" if name == "steps" else str(m[name]))
    if len({tuple(other["options"]) for other in group}) > 1:
        words.append(" ".join(m["options"]))
    return ", ".join(words)


def of_the_fastest(group):
    """The points of the variant that is fastest most: with each dtype its lines over batch and threads."""
    best = {}
    for m in group:
        best.setdefault(variants(m, group), []).append(m)
    chosen = {}
    for dtype in sorted({m["dtype"] for m in group}, key=PRECISIONS.get):
        def rank(name):
            its = [m.speed for m in best[name] if m["dtype"] == dtype]  # noqa: B023
            return (len(its), statistics.fmean(its) if its else 0)

        name = max(best, key=rank)
        chosen[dtype] = (name, [m for m in best[name] if m["dtype"] == dtype])
    return chosen
