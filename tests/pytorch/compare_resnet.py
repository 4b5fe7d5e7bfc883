"""Trains and infers a network with quern's resnet50 program and with PyTorch, from the same weights on the
same batch, and holds both to PyTorch in f64. Needs torch and the built program:

    python tests/pytorch/compare_resnet.py build/release/examples/resnet50/resnet50 -b 3 --image-size 97

Printed are relative differences by norm a tensor, of the worst tensor and of the median one. In f32 a ReLU
whose input rounds to the other side of 0 moves gradients by more than any rounding (PyTorch's f32 gradients are
often 1e-2 from its f64 ones), and --amp is far from f64 by design. So a line fails, and with it the script, if
quern is more than 1e-4 away from f64 and more than twice as far as PyTorch in the same precision, whose distance
is the larger of its two memory formats. Each further step multiplies such differences: with a large --lr they
soon reach the size of the gradients, in any program, and then a loss may differ by chance.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile

import torch

from networks import network
from resnet import load_safetensors, save_safetensors


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


def pytorch_infer(model, x, autocast):
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        return model.eval()(x)


def pytorch_train(model, x, target, args, autocast):
    model.train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.wd
    )
    losses = []
    for _ in range(args.steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = torch.nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    return losses, grads, {name: t.clone() for name, t in model.state_dict().items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--arch", default="resnet50")
    parser.add_argument("-b", "--batch-size", type=int, default=4)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--wd", type=float, default=1e-4)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    model = network(args.arch)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.uniform_(module.bias, -0.2, 0.2)
    weights = {name: t.clone() for name, t in model.state_dict().items()}
    x = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    target = torch.randint(0, 1000, (args.batch_size,))

    with tempfile.TemporaryDirectory() as folder:
        files = {n: f"{folder}/{n}" for n in ("weights", "batch", "grads", "saved", "logits", "json")}
        save_safetensors(files["weights"], weights)
        save_safetensors(files["batch"], {"input": x, "target": target})
        common = ["--arch", args.arch, "--weights", files["weights"], "--batch", files["batch"]]
        common += ["--amp"] if args.amp else []
        common += ["--channels-last"] if args.channels_last else []
        train = ["--steps", args.steps, "--lr", args.lr, "--momentum", args.momentum, "--wd", args.wd]
        train += ["--dump-grads", files["grads"], "--save", files["saved"], "--json", files["json"]]
        run = lambda *words: subprocess.run([str(w) for w in words], check=True, stdout=subprocess.DEVNULL)
        run(args.program, "train", "--no-drop", *common, *train)
        run(args.program, "infer", *common, "--steps", 1, "--dump-output", files["logits"])
        losses = json.load(open(files["json"]))["loss"]
        grads, saved = load_safetensors(files["grads"]), load_safetensors(files["saved"])
        logits = load_safetensors(files["logits"])["logits"]

    def pytorch(dtype, autocast, memory_format):
        """Logits of inference, then each step's loss, gradients and state, by tensor."""
        models = []
        for _ in range(2):
            model = network(args.arch)
            model.load_state_dict(weights)
            models.append(model.to(dtype).to(memory_format=memory_format))
        images = x.to(dtype).contiguous(memory_format=memory_format)
        logits = pytorch_infer(models[0], images, autocast)
        losses, grads, saved = pytorch_train(models[1], images, target, args, autocast)
        return {"": logits}, {"": torch.tensor(losses, dtype=torch.float64)}, grads, saved

    exact = pytorch(torch.float64, False, torch.contiguous_format)
    formats = (torch.contiguous_format, torch.channels_last)
    peers = [pytorch(torch.float32, args.amp, f) for f in formats]
    ours = ({"": logits}, {"": torch.tensor(losses, dtype=torch.float64)}, grads, saved)
    assert [t.keys() for t in ours] == [t.keys() for t in exact], "names differ"

    print("relative difference by norm              quern - f64   PyTorch - f64")
    failed = False
    for i, what in enumerate(("logits", "losses", "gradients", "weights and statistics")):
        counters = [n for n in exact[i] if n.endswith("num_batches_tracked")]
        failed |= any(ours[i][n].item() != exact[i][n].item() for n in counters)
        names = [n for n in exact[i] if n not in counters and exact[i][n].norm() > 0]
        distances = [[relative(run[i][n], exact[i][n]) for n in names] for run in (ours, *peers)]
        for label, pick in (("worst", max), ("median", statistics.median)):
            mine, *torchs = map(pick, distances)
            bad = not (mine <= 1e-4 or mine <= 2 * max(torchs))
            failed |= bad
            where = names[distances[0].index(mine)] if label == "worst" else ""
            print(f"{what + ', ' + label:38s} {mine:13.2e} {max(torchs):15.2e}  {'FAIL ' if bad else ''}{where}")
            if len(names) == 1:
                break
    if failed:
        sys.exit("quern is further from f64 than PyTorch explains")


if __name__ == "__main__":
    main()
