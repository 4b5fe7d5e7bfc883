"""Makes the files of tests/goldens with PyTorch 2.13: python tests/pytorch/make_goldens.py

ops.safetensors       for each case: NAME.in0.., NAME.out, NAME.dout, and NAME.grad0.. for the inputs that have
                      a gradient. Inputs are f32, results those of PyTorch in f64, rounded to f32.
networks.safetensors  for each network of networks.py with 10 classes, on two images: a digest of its state_dict's
                      names, logits in evaluation and training, and digests of gradients and of running statistics
                      as below; how far PyTorch's f32 (root mean square of four ways) and a bf16 autocast are
                      from them.
resnet50.safetensors  ResNet-50 on a small batch: everything made from Philox numbers that the test can make
                      again; logits and losses whole, and of each other tensor its norm and 16 projections
                      on vectors of random signs, from which the norm of a difference is estimated. Results
                      are f64's; pytorch_bf16.* is how far PyTorch's own bf16 autocast is from them.
optim.safetensors     in f64: where optimizers bring `start` with `gradients`, a row a step. sparse_adam.*: where
                      SparseAdam brings a table `start`, of which step s has gradients of rows[offsets[s]:offsets[s+1]].
"""

import contextlib
import pathlib
import struct

import numpy as np
import torch
import torch.nn.functional as F

from networks import NAMES, network
from resnet import ResNet, save_safetensors

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "goldens"


def philox(n, seed, stream):
    """The first n words of quern's random stream: word i%4 of philox4x32-10({i/4, stream}, seed)."""
    blocks = np.arange((n + 3) // 4, dtype=np.uint64)
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [blocks & low, blocks >> high] + [np.full_like(blocks, w) for w in (stream & 0xFFFFFFFF, stream >> 32)]
    k = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(p1 >> high) ^ c[1] ^ k[0], p1 & low, (p0 >> high) ^ c[3] ^ k[1], p0 & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, 1).reshape(-1)[:n].astype(np.uint32)


def uniform(shape, seed, stream, low, high):
    """quern's fill_uniform, scaled: low + (high - low) * u in f32."""
    u = (philox(int(np.prod(shape)), seed, stream) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
    return torch.from_numpy((np.float32(low) + np.float32(high - low) * u).reshape(shape))


def op_cases():
    g = torch.Generator().manual_seed(1)
    r = lambda *shape: torch.randn(*shape, generator=g)
    positive = lambda *shape: torch.rand(*shape, generator=g) + 0.1
    i = lambda high, *shape: torch.randint(0, high, shape, generator=g)
    ignoring = torch.tensor([3, -100, 0, 6, 2])
    yield "add", [r(3, 1, 4), r(2, 1)], torch.add
    yield "sub", [r(3, 4), r(4)], torch.sub
    yield "mul", [r(2, 3, 4), r(3, 1)], torch.mul
    yield "div", [r(3, 4), positive(4)], torch.div
    yield "maximum", [r(5, 4), r(5, 4)], torch.maximum
    yield "pow", [positive(3, 5)], lambda x: x.pow(2.5)
    for name in ("neg", "exp", "abs", "relu", "sigmoid", "tanh"):
        yield name, [r(4, 9)], getattr(torch, name)
    for name in ("log", "sqrt"):
        yield name, [positive(4, 9)], getattr(torch, name)
    yield "clamp", [r(4, 9)], lambda x: x.clamp(-0.5, 0.7)
    yield "gelu", [r(4, 9)], F.gelu
    yield "silu", [r(4, 9)], F.silu
    yield "sum", [r(2, 3, 5)], lambda x: x.sum((0, 2))
    yield "mean", [r(2, 3, 5)], lambda x: x.mean(1, keepdim=True)
    yield "max", [r(3, 7)], lambda x: x.max(1).values
    yield "topk", [r(3, 7)], lambda x: x.topk(3, 1).values
    yield "softmax", [r(3, 7)], lambda x: x.softmax(1)
    yield "log_softmax", [r(3, 7, 2)], lambda x: x.log_softmax(1)
    yield "cross_entropy", [r(5, 7), i(7, 5)], F.cross_entropy
    yield "cross_entropy_smooth", [r(5, 7), ignoring], lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1)
    yield "nll_loss", [r(5, 7), ignoring], F.nll_loss
    yield "mse_loss", [r(5, 7), r(5, 7)], F.mse_loss
    yield "matmul", [r(5, 7), r(7, 6)], torch.matmul
    yield "matmul_batched", [r(2, 1, 5, 7), r(3, 7, 6)], torch.matmul
    yield "linear", [r(2, 3, 7), r(5, 7), r(5)], F.linear
    yield "conv2d", [r(2, 3, 7, 8), r(5, 3, 3, 3), r(5)], lambda x, w, b: F.conv2d(x, w, b, padding=1)
    yield "conv2d_1x1", [r(2, 6, 5, 5), r(7, 6, 1, 1)], F.conv2d
    yield "conv2d_stem", [r(1, 3, 17, 19), r(4, 3, 7, 7)], lambda x, w: F.conv2d(x, w, stride=2, padding=3)
    yield "conv2d_stride", [r(2, 4, 9, 8), r(6, 4, 3, 3)], lambda x, w: F.conv2d(x, w, stride=(2, 3), padding=(1, 2))
    yield "conv2d_dilated", [r(1, 4, 9, 9), r(6, 4, 3, 2)], lambda x, w: F.conv2d(x, w, dilation=(2, 3), padding=2)
    yield "conv2d_groups", [r(2, 6, 6, 5), r(4, 3, 3, 3)], lambda x, w: F.conv2d(x, w, groups=2, padding=1)
    yield "conv2d_depthwise", [r(2, 5, 6, 5), r(5, 1, 3, 3)], lambda x, w: F.conv2d(x, w, groups=5)
    yield "batch_norm", [r(4, 5, 3, 2), r(5), r(5)], lambda x, w, b: F.batch_norm(x, None, None, w, b, True)
    yield "batch_norm_eval", [r(4, 5, 3, 2), r(5), r(5)], lambda x, w, b: F.batch_norm(
        x, torch.linspace(-1, 1, 5, dtype=x.dtype), torch.linspace(0.5, 2.5, 5, dtype=x.dtype), w, b)
    yield "layer_norm", [r(3, 4, 6), r(4, 6), r(4, 6)], lambda x, w, b: F.layer_norm(x, (4, 6), w, b)
    yield "max_pool2d", [r(2, 3, 9, 8)], lambda x: F.max_pool2d(x, 3, 2, 1)
    yield "max_pool2d_ceil", [r(2, 3, 8, 9)], lambda x: F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True)
    yield "avg_pool2d", [r(2, 3, 9, 8)], lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)
    yield "avg_pool2d_exclude", [r(2, 3, 9, 8)], lambda x: F.avg_pool2d(x, (3, 2), (2, 1), 1, count_include_pad=False)
    yield "adaptive_avg_pool2d", [r(2, 3, 7, 8)], lambda x: F.adaptive_avg_pool2d(x, (3, 5))
    yield "cat", [r(2, 3), r(2, 1), r(2, 4)], lambda *xs: torch.cat(xs, 1)
    yield "stack", [r(2, 3), r(2, 3)], lambda *xs: torch.stack(xs, 1)
    yield "pad", [r(2, 3, 4)], lambda x: F.pad(x, (1, 2, 0, 3), value=0.5)
    yield "permute", [r(2, 3, 4)], lambda x: x.permute(2, 0, 1)
    yield "slice", [r(6, 7)], lambda x: x[:, 1:6:2]
    yield "embedding", [i(6, 2, 3), r(6, 4)], F.embedding
    yield "expand", [r(3, 1)], lambda x: x.expand(4, 3, 5)
    yield "reshape", [r(3, 4, 2)], lambda x: x.reshape(6, -1)
    yield "flatten", [r(3, 4, 2)], lambda x: x.flatten(1)
    yield "squeeze", [r(3, 1, 2)], lambda x: x.squeeze(1)
    yield "unsqueeze", [r(3, 2)], lambda x: x.unsqueeze(1)
    yield "transpose", [r(3, 4, 2)], lambda x: x.transpose(0, 2)
    yield "narrow", [r(3, 6)], lambda x: x.narrow(1, 2, 3)
    yield "select", [r(3, 4, 2)], lambda x: x.select(1, 2)
    yield "contiguous", [r(2, 3, 4, 5)], lambda x: x.contiguous(memory_format=torch.channels_last)
    yield "clone", [r(3, 4, 2)], torch.clone
    yield "dropout_eval", [r(3, 4)], lambda x: F.dropout(x, 0.5, False)
    yield "add_number", [r(3, 4)], lambda x: 1.5 + x
    yield "sub_number", [r(3, 4)], lambda x: 1.5 - x
    yield "mul_number", [r(3, 4)], lambda x: x * 1.5
    yield "div_number", [positive(3, 4)], lambda x: 1.5 / x
    yield "pow_tensor", [positive(3, 5), r(5)], torch.pow
    yield "mean_all", [r(3, 4, 2)], torch.mean
    yield "sum_rows", [r(4, 9, 3)], lambda x: x.sum(1)
    norm = lambda x, w, b: F.batch_norm(x, None, None, w, b, True)
    yield "conv_chain", [r(2, 4, 5, 6), r(3, 4, 1, 1), r(3), r(3), r(4, 3, 3, 3), r(4), r(4)], (
        lambda x, w, g, b, w2, g2, b2: F.relu(
            x + norm(F.conv2d(F.relu(norm(F.conv2d(x, w), g, b)), w2, padding=1), g2, b2)))
    yield "conv_chain_projection", [r(2, 3, 6, 5), r(4, 3, 3, 3), r(4), r(4), r(4, 3, 1, 1), r(4), r(4)], (
        lambda x, w, g, b, w2, g2, b2: F.relu(
            norm(F.conv2d(x, w, stride=2, padding=1), g, b) + norm(F.conv2d(x, w2, stride=2), g2, b2)))
    yield "minimum", [r(5, 4), r(5, 4)], torch.minimum
    small = lambda *shape: i(3, *shape).float()
    for name in ("eq", "ne", "lt", "ge"):
        yield name, [small(5, 4), small(4), r(5, 4)], lambda a, b, c, f=getattr(torch, name): torch.where(f(a, b), a, c)
    for name in ("le", "gt"):
        yield name, [r(5, 4), r(5, 4)], lambda a, b, f=getattr(torch, name): torch.where(f(a, 0.25), a, b)
    yield "where", [r(5, 4), r(4), r(3, 5, 4), r(5, 1)], lambda p, q, a, b: torch.where(p > q, a, b)
    for name, scale in (("relu6", 6), ("hardsigmoid", 3), ("hardswish", 3)):
        yield name, [r(4, 9)], lambda x, f=getattr(F, name), scale=scale: f(x * scale)
    yield "activate", [r(4, 9)], F.silu
    yield "leaky_relu", [r(4, 9)], lambda x: F.leaky_relu(x, 0.1)
    options = dict(padding_idx=2, scale_grad_by_freq=True)
    yield "embedding_options", [i(6, 2, 7), r(6, 4)], lambda x, w: F.embedding(x, w, **options)
    bags = torch.tensor([0, 3, 3, 7])
    yield "embedding_bag", [i(6, 9), r(6, 4), bags], lambda x, w, o: F.embedding_bag(x, w, o)
    yield "embedding_bag_padding", [i(3, 9), r(6, 4), bags], lambda x, w, o: F.embedding_bag(x, w, o, padding_idx=1)
    yield "embedding_bag_sum", [i(6, 9), r(6, 4), bags, r(9)], lambda x, w, o, s: F.embedding_bag(
        x, w, o, mode="sum", per_sample_weights=s)
    yield "embedding_bag_max", [i(6, 4, 3), r(6, 4)], lambda x, w: F.embedding_bag(x, w, mode="max")


def make_ops():
    tensors, g = {}, torch.Generator().manual_seed(2)
    for name, inputs, f in op_cases():
        exact = [x.double().requires_grad_() if x.is_floating_point() else x for x in inputs]
        out = f(*exact)
        dout = torch.randn(out.shape, generator=g)
        out.backward(dout.double())
        tensors |= {f"{name}.in{i}": x for i, x in enumerate(inputs)}
        tensors |= {f"{name}.out": out.detach().float(), f"{name}.dout": dout}
        tensors |= {f"{name}.grad{i}": x.grad.float() for i, x in enumerate(exact) if x.grad is not None}
    save_safetensors(GOLDENS / "ops.safetensors", tensors)


# ResNet-50: the recipe that tests/nn/resnet_golden_test.cpp repeats. INPUT is the stream, out of 3000 tried, whose
# 644,480 inputs of ReLUs keep furthest from zero in the first step: in f64 none is nearer than 8.8 times the rms
# difference that PyTorch's f32 has in its layer (8.3e-6 in all, 2.2e-7 to 4.8e-6 a layer). So no rounding of f32
# flips a mask. A flip is a legitimate difference, but one among the 2048 values of a late layer moves all
# gradients by a percent. Later steps have such values (4.2 and 1.7 times), whence a learning rate with which a flip
# in one of them would move weights and statistics by no more than 2e-5.
BATCH, IMAGE, INPUT, STEPS, SEED, LR, MOMENTUM, DECAY = 2, 33, 1174, 3, 2026, 1e-4, 0.9, 1e-4
DIGESTS = 16


def recipe_tensor(name, shape, stream):
    if len(shape) == 4:  # convolution: variance 2 / fan_in
        bound = (6.0 / (shape[1] * shape[2] * shape[3])) ** 0.5
        return uniform(shape, SEED, stream, -bound, bound)
    if len(shape) == 2:
        return uniform(shape, SEED, stream, -0.02, 0.02)
    if name.endswith(("bias", "mean")):
        return uniform(shape, SEED, stream, -0.2, 0.2)
    # A batch norm's weight. Small at the end of a residual branch, as in a trained network: with 1 there, a
    # rounding error of f32 grows to percents of a gradient on its way through 16 blocks.
    return uniform(shape, SEED, stream, 0.1, 0.3) if "bn3" in name else uniform(shape, SEED, stream, 0.5, 1.5)


def digest(t, stream):
    """Norm and projections: bit k of word i of a Philox stream is the sign of element i in projection k."""
    values = t.detach().double().reshape(-1).numpy()
    words = philox(len(values), SEED + 1, stream)
    signs = [1.0 - 2.0 * ((words >> np.uint32(k)) & np.uint32(1)) for k in range(DIGESTS)]
    return [np.linalg.norm(values)] + [float(np.dot(s, values)) for s in signs]


def digests(named):
    return torch.tensor([digest(t, i) for i, (_, t) in enumerate(named)], dtype=torch.float64)


def train_resnet(dtype, autocast):
    model = ResNet()
    for i, (name, p) in enumerate(model.named_parameters()):
        p.data = recipe_tensor(name, tuple(p.shape), i)
    model = model.to(dtype).train()
    x = uniform((BATCH, 3, IMAGE, IMAGE), SEED, INPUT, -(3**0.5), 3**0.5).to(dtype)
    target = torch.arange(BATCH) * 37 % 1000
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    result = {"loss": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            logits = model(x)
            loss = F.cross_entropy(logits, target)
        loss.backward()
        if step == 0:
            result["logits"] = logits.detach().double()
            result["grads"] = digests([(n, p.grad) for n, p in model.named_parameters()])
        result["loss"].append(loss.item())
        optimizer.step()
    result["loss"] = torch.tensor(result["loss"], dtype=torch.float64)
    result["weights"] = digests(model.named_parameters())
    result["buffers"] = digests([(n, b) for n, b in model.named_buffers() if "num_batches" not in n])
    return result


def relative(a, b):
    return torch.linalg.vector_norm(a - b, dim=-1) / torch.linalg.vector_norm(b, dim=-1)


def distance(peer, exact, key):
    """Relative difference by norm: of a row of logits, of all losses, of each tensor by its projections."""
    digested = key not in ("loss", "logits", "eval", "train")
    a, b = (peer[key][:, 1:], exact[key][:, 1:]) if digested else (peer[key], exact[key])
    return relative(a, b)


def network_distance(peer, exact, key):
    """The same, but of a gradient to no less than a thousandth of the largest: those that are 0 but for rounding, as
    of a bias that the next batch norm takes away, have no relative difference."""
    if key != "grads":
        return distance(peer, exact, key)
    a, b = peer[key][:, 1:], exact[key][:, 1:]
    sizes = torch.linalg.vector_norm(b, dim=-1)
    return torch.linalg.vector_norm(a - b, dim=-1) / sizes.clamp(min=1e-3 * sizes.max())


def make_resnet():
    exact = train_resnet(torch.float64, False)
    f32, bf16 = train_resnet(torch.float32, False), train_resnet(torch.float32, True)
    for key in list(exact):
        for name, peer in (("f32", f32), ("autocast bf16", bf16)):
            r = distance(peer, exact, key)
            print(f"PyTorch {name} - f64, {key}: relative difference worst {r.max():.2e}, median {r.median():.2e}")
    pytorch = {f"pytorch_bf16.{key}": distance(bf16, exact, key) for key in exact}
    save_safetensors(GOLDENS / "resnet50.safetensors", exact | pytorch)


def make_optim():
    start = uniform([7], SEED, 1, -1, 1).double()
    gradients = uniform([20, 7], SEED, 2, -1, 1).double()
    optim = torch.optim
    makers = {
        "sgd": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
        "sgd_nesterov": lambda p: optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
        "adamw": lambda p: optim.AdamW(p, lr=0.05, weight_decay=0.1),
        "adam": lambda p: optim.Adam(p, lr=0.05, weight_decay=0.1),
        "rmsprop": lambda p: optim.RMSprop(p, lr=0.01, alpha=0.9, eps=0.0316, momentum=0.9, weight_decay=0.1),
        "rmsprop_plain": lambda p: optim.RMSprop(p, lr=0.01),
        "adagrad": lambda p: optim.Adagrad(p, lr=0.05, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.2),
        "adagrad_plain": lambda p: optim.Adagrad(p),
        "adadelta": lambda p: optim.Adadelta(p, lr=0.5, rho=0.8, weight_decay=0.1),
        "adamax": lambda p: optim.Adamax(p, lr=0.05, weight_decay=0.1),
        "nadam": lambda p: optim.NAdam(p, lr=0.05, weight_decay=0.1, momentum_decay=0.01),
        "radam": lambda p: optim.RAdam(p, lr=0.05, weight_decay=0.1),
        "asgd": lambda p: optim.ASGD(p, lr=0.05, lambd=0.01, t0=5, weight_decay=0.1),
        "rprop": lambda p: optim.Rprop(p, lr=0.05),
    }
    tensors = {"start": start, "gradients": gradients}
    torch.set_default_dtype(torch.float64)  # of the products and rates that NAdam and ASGD keep from step to step
    for name, make in makers.items():
        param = start.clone().requires_grad_()
        optimizer = make([param])
        for gradient in gradients:
            param.grad = gradient.clone()
            optimizer.step()
        tensors[name] = param.detach()
        if name == "asgd":
            tensors["asgd_average"] = optimizer.state[param]["ax"]
    torch.set_default_dtype(torch.float32)
    tensors |= {f"sparse_adam.{name}": t for name, t in make_sparse_adam().items()}
    save_safetensors(GOLDENS / "optim.safetensors", tensors)


def make_sparse_adam():
    """Ten steps. Row 0 is in all of them but the seventh, which has none; row 7 in the last, row 8 in none."""
    touched = [[0, 1, 2, 3], [0, 2], [0, 3, 5], [0], [0, 1, 2, 3, 4, 5, 6], [0, 4], [], [0, 1, 6], [0, 2, 3], [0, 6, 7]]
    start = uniform([9, 5], SEED, 3, -1, 1).double()
    values = uniform([sum(map(len, touched)), 5], SEED, 4, -1, 1).double()
    offsets = torch.tensor([0, *map(len, touched)]).cumsum(0)
    rows = torch.tensor([row for step in touched for row in step])
    tensors = {"start": start, "rows": rows, "offsets": offsets, "values": values}
    for name, eps in (("end", 1e-8), ("end_without_eps", 1e-30)):
        table = start.clone().requires_grad_()
        optimizer = torch.optim.SparseAdam([table], lr=0.05, eps=eps)
        for begin, end in zip(offsets[:-1], offsets[1:]):
            table.grad = torch.sparse_coo_tensor(rows[None, begin:end], values[begin:end], start.shape)
            optimizer.step()
        tensors[name] = table.detach()
    return tensors


# Other networks: the recipe that tests/nn/network_golden_test.cpp repeats. INPUTS are streams: of networks whose
# activations have kinks, out of 400 to 3000 tried, that whose inputs of activations keep furthest from them (as INPUT
# above, in f64: 3.9, 54, 4.5 and 3.7 times the rms difference that PyTorch's f32 has in its layer).
INPUTS = dict.fromkeys(NAMES, 1001)
INPUTS |= {"mobilenet_v2": 2208, "mobilenet_v3_large": 1085, "efficientnet_lite0": 2817, "resnext50_32x4d": 3062}
SIDE = 64


def names_digest(state):
    """FNV-1a of "name [sizes]" lines, without the counters of batches."""
    h = 0xCBF29CE484222325
    for name, t in state.items():
        for byte in f"{name} {list(t.shape)}\n".replace(", ", ",").encode():
            h = ((h ^ byte) * 0x100000001B3) & (2**64 - 1)
    return torch.tensor([h - 2**64 if h >= 2**63 else h])


class RoundToBf16(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(_, dy):
        return dy.bfloat16().to(dy.dtype)


class Bf16(torch.overrides.TorchFunctionMode):
    """f32 rounded where PyTorch's autocast rounds, whose own bf16 convolutions take minutes on a CPU without any."""

    LOWERED = (torch.conv2d, F.conv2d, F.linear)
    FOLLOW = (F.batch_norm, F.relu, F.relu6, F.silu, F.hardswish, F.hardsigmoid, torch.sigmoid, F.gelu)
    FOLLOW += (F.adaptive_avg_pool2d,)
    SUMS = (torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.mul, torch.Tensor.__mul__)  # of bf16, but in ConvNeXt

    def __init__(self, sums):
        super().__init__()
        self.rounded = self.LOWERED + self.FOLLOW + (self.SUMS if sums else ())

    def __torch_function__(self, f, types, args=(), kwargs=None):
        if f in self.LOWERED:
            args = [RoundToBf16.apply(a) if torch.is_tensor(a) and a.ndim > 1 else a for a in args]
        y = f(*args, **(kwargs or {}))
        return RoundToBf16.apply(y) if f in self.rounded else y


def run_network(name, dtype, autocast=False, memory_format=torch.contiguous_format):
    model = network(name, num_classes=10)
    tensors = list(model.named_parameters())
    tensors += [(n, b) for n, b in model.named_buffers() if b.is_floating_point()]
    for i, (tensor, t) in enumerate(tensors):
        t.data = recipe_tensor(tensor, tuple(t.shape), i)
    result = {"names": names_digest(model.state_dict())}
    model = model.to(dtype, memory_format=memory_format)
    x = uniform((BATCH, 3, SIDE, SIDE), SEED, INPUTS[name], -(3**0.5), 3**0.5)
    x = x.to(dtype, memory_format=memory_format)
    with Bf16(name != "convnext_tiny") if autocast else contextlib.nullcontext():
        with torch.no_grad():
            result["eval"] = model.eval()(x).double()
        logits = model.train()(x)
        loss = F.cross_entropy(logits, torch.arange(BATCH))
    loss.backward()
    result["train"] = logits.detach().double()
    result["grads"] = digests([(n, p.grad) for n, p in model.named_parameters()])
    result["buffers"] = digests([(n, b) for n, b in model.named_buffers() if b.is_floating_point()])
    return result


def run_network_each_way(name):
    """In f32, in either format, by oneDNN's convolutions and by PyTorch's own: equally good, they sum in different
    orders, and what a network makes of that varies severalfold."""
    runs = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        for onednn in (True, False):
            with torch.backends.mkldnn.flags(enabled=onednn):
                runs.append(run_network(name, torch.float32, False, memory_format))
    return runs


def make_networks():
    goldens = {}
    for name in NAMES:
        exact = run_network(name, torch.float64)
        goldens[f"{name}.stream"], goldens[f"{name}.names"] = torch.tensor([INPUTS[name]]), exact.pop("names")
        for key, t in exact.items():
            if t.numel():
                goldens[f"{name}.{key}"] = t if key in ("eval", "train") else t.float()
        for kind, peers in (("f32", run_network_each_way(name)), ("bf16", [run_network(name, torch.float32, True)])):
            for key, t in exact.items():
                if t.numel():
                    off = torch.stack([network_distance(peer, exact, key) for peer in peers])
                    off = off.square().mean(0).sqrt()
                    goldens[f"{name}.pytorch_{kind}.{key}"] = off.float()
                    print(f"{name}: PyTorch {kind} - f64, {key}: worst {off.max():.2e}, median {off.median():.2e}")
    save_safetensors(GOLDENS / "networks.safetensors", goldens)


if __name__ == "__main__":
    GOLDENS.mkdir(exist_ok=True)
    make_ops()
    make_networks()
    make_resnet()
    make_optim()
