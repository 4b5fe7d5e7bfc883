"""Tells how far a long command is: on a terminal in a line that is rewritten, in a pipe in plain lines.

    progress = Progress(weights)           # how long turns take, relative to each other
    progress.begin("infer f32 batch 16")
    progress.at(0.5)                       # half of the turn
    progress.end("28.9 images/s")
"""

import os
import sys
import time

QUIET = 60  # seconds in a pipe without a line, at most, of a turn that tells how far it is


def clock(seconds):
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


class Progress:
    def __init__(self, weights, stream=None, now=time.monotonic):
        self.weights, self.stream, self.now = weights, stream or sys.stderr, now
        self.terminal = self.stream.isatty()
        self.done, self.label, self.fraction = 0, "", 0.0
        self.start = self.told = now()

    def left(self):
        """Seconds; None while nothing is known."""
        part = self.weights[self.done] * self.fraction if self.done < len(self.weights) else 0
        known = sum(self.weights[: self.done]) + part
        if known <= 0:
            return None
        return (self.now() - self.start) / known * (sum(self.weights) - known)

    def _line(self, what):
        left = self.left()
        times = f"{clock(self.now() - self.start)} gone" + ("" if left is None else f", {clock(left)} left")
        return f"[{min(self.done + 1, len(self.weights))}/{len(self.weights)}] {what}; {times}"

    def _tell(self, what):
        self.told = self.now()
        if not self.terminal:
            print(self._line(what), file=self.stream, flush=True)
            return
        width = os.get_terminal_size(self.stream.fileno()).columns or 80
        print(f"\r{self._line(what)[: width - 1]}\x1b[K", end="", file=self.stream, flush=True)

    def begin(self, label):
        self.label, self.fraction = label, 0.0
        if self.terminal:
            self._tell(label)

    def at(self, fraction):
        self.fraction = min(1.0, fraction)
        if self.terminal or self.now() - self.told >= QUIET:
            self._tell(f"{self.label}, {100 * self.fraction:.0f}%")

    def end(self, result):
        """On a terminal the line is free for what the caller prints."""
        self.fraction = 1.0
        if self.terminal:
            print("\r\x1b[K", end="", file=self.stream, flush=True)
        else:
            self._tell(f"{self.label}: {result}")
        self.done, self.fraction = self.done + 1, 0.0
