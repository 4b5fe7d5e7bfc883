"""The ops of compare_ops.py: what is timed at which shapes, and PyTorch's side, a process that answers the questions of
ops.cpp, which says what they are."""

import json
import math
import os
import re
import sys
import time

# Some 1000 elements, 100 thousand, and 4 million or more. The ops are those of both engines, by name.
FLAT = [(1024,)], [(102400,)], [(1 << 22,)]
PAIR = [(1024,)] * 2, [(102400,)] * 2, [(1 << 22,)] * 2
ROWS = [(8, 128)], [(100, 1000)], [(4096, 1024)]
CUBE = [(2, 16, 32)], [(4, 100, 256)], [(16, 512, 512)]
IMAGES = [(1, 16, 8, 8)], [(2, 64, 28, 28)], [(16, 128, 56, 56)]
CHANNELS = [[shape[0], (shape[0][1],), (shape[0][1],)] for shape in IMAGES]
JOINED = [[shape[0], shape[0]] for shape in IMAGES]

ANY, POSITIVE = (-2, 2), (0.1, 1.1)
FORMATS = ("contiguous", "channels_last")

# name: (shapes of its operands at each size, their range, has a gradient, in both formats)
CASES = {
    **{name: (FLAT, ANY, True, False) for name in "neg abs exp relu sigmoid tanh gelu silu clamp relu6".split()},
    **{name: (FLAT, ANY, True, False) for name in "hardswish hardsigmoid leaky_relu".split()},
    **{name: (FLAT, POSITIVE, True, False) for name in "log sqrt pow_2 pow_3 pow_-0.5 pow_1.7 div_by".split()},
    **{name: (PAIR, ANY, True, False) for name in "add sub mul maximum minimum mse_loss".split()},
    **{name: (PAIR, ANY, False, False) for name in "eq lt".split()},
    "where": ([[s[0]] * 3 for s in FLAT], ANY, True, False),
    **{name: (PAIR, POSITIVE, True, False) for name in "div pow".split()},
    **{name: (FLAT, ANY, True, False) for name in "add_number mul_number sum dropout clone".split()},
    "add_row": (([(8, 128), (128,)], [(100, 1000), (1000,)], [(4096, 1024), (1024,)]), ANY, True, False),
    "mul_column": (([(8, 128), (8, 1)], [(100, 1000), (100, 1)], [(4096, 1024), (4096, 1)]), ANY, True, False),
    **{name: (FLAT, ANY, False, False) for name in "to_bf16 to_f32".split()},
    **{name: (ROWS, ANY, True, False) for name in "sum_first sum_last max_first max_last softmax_first".split()},
    **{name: (ROWS, ANY, True, False) for name in "softmax_last log_softmax_last topk transpose slice".split()},
    **{name: (ROWS, ANY, True, False) for name in "cross_entropy nll_loss embedding".split()},
    **{name: (CUBE, ANY, True, False) for name in "softmax_1 log_softmax_1 mean_1".split()},
    "argmax_1": (CUBE, ANY, False, False),
    "layer_norm": ([[s[0], (s[0][1],), (s[0][1],)] for s in ROWS], ANY, True, False),
    "batch_norm": (CHANNELS, ANY, True, True),
    "batch_norm_eval": (CHANNELS, ANY, False, True),
    **{name: (IMAGES, ANY, True, True) for name in "max_pool2d avg_pool2d global_avg_pool2d pad".split()},
    "adaptive_avg_pool2d": ((IMAGES[0], [(2, 64, 28, 28)], [(32, 64, 56, 56)]), ANY, True, True),
    **{name: (JOINED, ANY, True, True) for name in ("cat_first", "cat_1")},
    "to_nhwc": (IMAGES, ANY, True, False),
    "linear": (
        ([(8, 128), (128, 128), (128,)], [(1, 2048), (1000, 2048), (1000,)], [(4096, 1024), (512, 1024), (512,)]),
        *(ANY, True, False),
    ),
    "matmul": (([(32, 32)] * 2, [(320, 320)] * 2, [(1024, 1024)] * 2), ANY, True, False),
    "matvec": (([(32, 32), (32,)], [(320, 320), (320,)], [(2048, 2048), (2048,)]), ANY, True, False),
    "vecmat": (([(1, 32), (32, 32)], [(1, 320), (320, 320)], [(1, 2048), (2048, 2048)]), ANY, True, False),
    "thin_m": (([(4, 64), (64, 64)], [(4, 320), (320, 320)], [(8, 2048), (2048, 2048)]), ANY, True, False),
    "thin_n": (([(64, 64), (64, 4)], [(320, 320), (320, 4)], [(2048, 2048), (2048, 8)]), ANY, True, False),
    "long_k": (([(4, 256), (256, 4)], [(16, 4096), (4096, 16)], [(16, 1 << 18), (1 << 18, 16)]), ANY, True, False),
    "batched": (([(16, 8, 8)] * 2, [(400, 16, 16)] * 2, [(4096, 32, 32)] * 2), ANY, True, False),
    "attention": (
        ([(2, 4, 8, 16), (2, 4, 16, 8)], [(4, 8, 64, 32), (4, 8, 32, 64)], [(16, 12, 128, 64), (16, 12, 64, 128)]),
        *(ANY, True, False),
    ),
}
# Cases that are another op's.
SAME = {"add_row": "add", "mul_column": "mul"} | dict.fromkeys(
    ("matvec", "vecmat", "thin_m", "thin_n", "long_k", "batched", "attention"), "matmul"
)
UNLIKE = ("dropout",)  # whose results are not PyTorch's


def jobs(quick):
    """The rows: each case at each size, in each dtype and format, forward and with backward."""
    for name, (sizes, (low, high), gradient, formats) in CASES.items():
        dtypes = {"to_bf16": ("f32",), "to_f32": ("bf16",)}.get(name, ("f32", "bf16"))
        for dtype in dtypes[:1] if quick else dtypes:
            for layout in FORMATS if formats else FORMATS[:1]:
                for backward in (False, True)[: 1 + (gradient and not quick)]:
                    for shapes in sizes:
                        yield {
                            **{"name": name, "op": SAME.get(name, name), "dtype": dtype, "format": layout},
                            **{"backward": backward, "shapes": shapes, "low": low, "high": high},
                        }


SHAPE = re.compile(
    r"\d+ (?:g(\d+)_?)?ic(\d+)oc(\d+)_ih(\d+)oh\d+kh(\d+)sh(\d+)dh(\d+)ph(\d+)_iw(\d+)ow\d+kw(\d+)sw(\d+)dw(\d+)pw(\d+)"
)


def convolutions(file, batch, quick):
    """The rows of a file of bench/shapes."""
    for line in file.read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        shape = SHAPE.fullmatch(line.strip())
        if not shape:
            raise SystemExit(f"compare_ops: {file}: expected a convolution, got {line}")
        groups, ic, oc, ih, kh, sh, dh, ph, iw, kw, sw, dw, pw = (int(n or 1) for n in shape.groups())
        for dtype in ("f32",) if quick else ("f32", "bf16"):
            for layout in FORMATS[::-1][: 1 if quick else 2]:
                for backward in (False, True):
                    yield {
                        **{"name": "conv2d", "op": "conv2d", "dtype": dtype, "format": layout, "backward": backward},
                        **{"shapes": [(batch, ic, ih, iw), (oc, ic // groups, kh, kw)], "low": -2, "high": 2},
                        "conv": (sh, sw, ph, pw, dh + 1, dw + 1, groups),
                    }


def pytorch_ops(torch):
    """Each op as a function of its operands that returns a call."""
    import numpy as np

    f = torch.nn.functional

    def indices(n, count):
        return torch.arange(n) % count

    def random_indices(n, count):
        state, drawn = 1, []
        for _ in range(n):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            drawn.append((state >> 33) % count)
        return torch.tensor(drawn)

    def lookup(f, result):
        return lambda *x: (lambda at: lambda: (f(*x, at), x[result])[1])(random_indices(len(x[1]), len(x[0])))

    def train_rows(table, x):
        table.requires_grad_()
        optimizer, at = torch.optim.SparseAdam([table]), random_indices(len(x), len(table))

        def step():
            with torch.enable_grad():
                y = f.embedding(at, table, sparse=True)
                loss = (y * y).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return table

        return step

    def numpy_lookup(f, result):
        return lookup(lambda t, x, at: f(t.numpy(), x.numpy(), at.numpy()), result)

    def batch_norm(x, weight, bias, training):
        mean, var = torch.zeros_like(weight, dtype=torch.float32), torch.ones_like(weight, dtype=torch.float32)
        weight, bias = (t.detach().float().requires_grad_(t.requires_grad) for t in (weight, bias))  # as autocast has
        return lambda: f.batch_norm(x, mean, var, weight, bias, training)

    def with_targets(loss):
        return lambda x: (lambda t: lambda: loss(x, t))(indices(*x.shape))

    plain = {name: getattr(torch, name) for name in "neg abs exp log sqrt relu sigmoid tanh pow matmul".split()}
    plain |= {name: getattr(torch, name) for name in "maximum minimum eq lt".split()}
    plain |= {name: getattr(torch, name) for name in "add sub mul div sum clone".split()}
    plain |= {
        **{name: getattr(f, name) for name in "relu6 hardswish hardsigmoid leaky_relu".split()},
        "where": lambda a, b, p: torch.where(p > 0, a, b),
        **{"gelu": f.gelu, "silu": f.silu, "dropout": f.dropout, "mse_loss": f.mse_loss, "linear": f.linear},
        "clamp": lambda x: torch.clamp(x, -0.5, 0.5),
        **{"add_number": lambda x: x + 1.5, "mul_number": lambda x: x * 1.5, "div_by": lambda x: 1.5 / x},
        **{f"pow_{p}": lambda x, p=p: x**p for p in (2, 3, -0.5, 1.7)},
        **{"sum_first": lambda x: x.sum(0), "sum_last": lambda x: x.sum(-1), "mean_1": lambda x: x.mean(1)},
        **{"max_first": lambda x: x.max(0).values, "max_last": lambda x: x.max(-1).values},
        **{"argmax_1": lambda x: x.argmax(1), "topk": lambda x: x.topk(5).values},
        **{"softmax_first": lambda x: x.softmax(0), "softmax_1": lambda x: x.softmax(1)},
        **{"softmax_last": lambda x: x.softmax(-1), "log_softmax_1": lambda x: x.log_softmax(1)},
        "log_softmax_last": lambda x: x.log_softmax(-1),
        "layer_norm": lambda x, w, b: f.layer_norm(x, w.shape, w, b),
        **{"max_pool2d": lambda x: f.max_pool2d(x, 3, 2, 1), "avg_pool2d": lambda x: f.avg_pool2d(x, 2)},
        "global_avg_pool2d": lambda x: f.adaptive_avg_pool2d(x, 1),
        "adaptive_avg_pool2d": lambda x: f.adaptive_avg_pool2d(x, 7),
        **{"cat_first": lambda a, b: torch.cat((a, b)), "cat_1": lambda a, b: torch.cat((a, b), 1)},
        "pad": lambda x: f.pad(x, (1, 1, 1, 1)),
        **{"to_bf16": lambda x: x.to(torch.bfloat16), "to_f32": lambda x: x.to(torch.float32)},
        **{"transpose": lambda x: x.mT.contiguous(), "slice": lambda x: x[..., 1:-1].contiguous()},
        "to_nhwc": lambda x: x.contiguous(memory_format=torch.channels_last),
    }
    made = {
        "batch_norm": lambda x, w, b: batch_norm(x, w, b, True),
        "batch_norm_eval": lambda x, w, b: batch_norm(x, w, b, False),
        **{"cross_entropy": with_targets(f.cross_entropy), "nll_loss": with_targets(f.nll_loss)},
        "train_rows": train_rows,
        "copy": lambda t, x: lambda: x.copy_(t[: len(x)]),
        "gather_rows": lookup(lambda t, x, at: torch.index_select(t, 0, at, out=x), 1),
        "scatter_rows": lookup(lambda t, x, at: t.index_copy_(0, at, x), 0),
        "scatter_add_rows": lookup(lambda t, x, at: t.index_add_(0, at, x), 0),
        "numpy_gather_rows": numpy_lookup(lambda t, x, at: t.take(at, 0, x, "clip"), 1),
        "numpy_scatter_rows": numpy_lookup(lambda t, x, at: t.__setitem__(at, x), 0),
        "numpy_scatter_add_rows": numpy_lookup(lambda t, x, at: np.add.at(t, at, x), 0),
        "embedding": lambda w: (lambda at: lambda: f.embedding(at, w))(indices(len(w) // 2, max(1, len(w) // 3))),
    }
    return {name: lambda *x, op=op: lambda: op(*x) for name, op in plain.items()} | made


class Job:
    """As in ops.cpp."""

    def __init__(self, torch, ops, job):
        self.torch, self.backward, self.x = torch, job["backward"], []
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[job["dtype"]]

        def made(sizes, dtype, low, high, seed):  # in parts, as a table may take most of the memory
            made, part = torch.empty(math.prod(sizes)), 1 << 24
            for i in range(0, len(made), part):
                steps = seed + 0.7548776662466927 * torch.arange(i, min(i + part, len(made)), dtype=torch.float64)
                made[i : i + part] = low + (high - low) * steps.fmod(1)
            return made.to(dtype).reshape(sizes)

        for k, sizes in enumerate(job["shapes"]):
            x = made(sizes, dtype, job["low"], job["high"], 0.3 * k)
            if len(sizes) == 4 and job["format"] == "channels_last":
                x = x.contiguous(memory_format=torch.channels_last)
            self.x.append(x.requires_grad_(self.backward))
        if "conv" in job:
            sh, sw, ph, pw, dh, dw, groups = job["conv"]
            self.call = lambda: torch.conv2d(*self.x, None, (sh, sw), (ph, pw), (dh, dw), groups)
        else:
            self.call = ops[job["op"]](*self.x)
        with torch.set_grad_enabled(self.backward):
            y = self.call()
        self.dy = torch.empty_like(y).copy_(made(y.shape, y.dtype, 0.5, 1.5, 0.7)) if self.backward else None

    def run(self):
        y = self.call()
        if self.backward:
            for x in self.x:
                x.grad = None
            y.backward(self.dy)
        return y

    def result(self):
        with self.torch.set_grad_enabled(self.backward):
            y = self.run()
        parts = (self.x[0].grad if self.backward else y.detach()).reshape(-1).split(1 << 24)
        return sum(float(part.double().abs().sum()) for part in parts)

    def seconds_a_call(self, seconds):
        calls, burst, begin = 0, 1, time.perf_counter()
        now = begin
        with self.torch.set_grad_enabled(self.backward):
            while now < begin + seconds:
                for _ in range(burst):
                    self.run()
                calls, burst, now = calls + burst, min(2 * burst, 64), time.perf_counter()
        return (now - begin) / calls


def main():
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(torch.__version__, flush=True)
    ops, job = pytorch_ops(torch), None
    for line in sys.stdin:
        question = json.loads(line)
        if "seconds" in question:
            answer = job.seconds_a_call(question["seconds"])
        else:
            job = None
            job = Job(torch, ops, question)
            answer = job.result()
        print(answer, flush=True)


if __name__ == "__main__":
    main()
