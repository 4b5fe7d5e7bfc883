"""What is said of a point, from the milliseconds of its steps alone."""

import math
import statistics


def timed(line):
    """The milliseconds of a round's steps without those of the warm-up."""
    return line["step_ms"][line["point"]["warm_up"] :]


def percentile(values, p):
    """What a share `p` of the values stay within: the nearest rank; the mean of the middle two for p = 0.5."""
    values = sorted(values)
    if p == 0.5:
        return statistics.median(values)
    return values[max(0, math.ceil(p * len(values)) - 1)]


def of(rounds, price_per_hour=None):
    """The figures of a point's rounds. Milliseconds; percentiles are of all its steps together.

    step_ms             the median of the rounds' medians
    images_per_second   batch ÷ that; by_round: of each round's median
    throughput          images ÷ time, the median over rounds: with what steps waited for now and then
    dollars_per_million_images, thousand_images_per_dollar    by images_per_second
    """
    batch = rounds[0]["point"]["batch"]
    medians = [statistics.median(timed(r)) for r in rounds]
    steps = [ms for r in rounds for ms in timed(r)]
    figures = {"step_ms": statistics.median(medians), "samples": len(steps), "rounds": len(rounds)}
    figures |= {"by_round": [1e3 * batch / ms for ms in medians]}
    figures |= {"images_per_second": 1e3 * batch / figures["step_ms"]}
    figures |= {"throughput": statistics.median(1e3 * batch * len(timed(r)) / sum(timed(r)) for r in rounds)}
    figures |= {"mean": statistics.fmean(steps)}
    figures |= {f"p{p}": percentile(steps, p / 100) for p in (50, 90, 99)}
    figures |= {"peak_mib": max(r["peak_rss_mib"] for r in rounds), "isa": rounds[-1]["isa"]}
    if price_per_hour:
        figures |= price(price_per_hour, figures["images_per_second"])
    return figures


def price(per_hour, images_per_second):
    return {
        "dollars_per_million_images": per_hour * 1e6 / (3600 * images_per_second),
        "thousand_images_per_dollar": 3.6 * images_per_second / per_hour,
    }
