"""Trains and infers a ResNet with quern's resnet50 program and with PyTorch, from the same weights on the
same batch, and prints the relative differences by norm. Needs torch and the built program:

    python tests/pytorch/compare_resnet.py build/release/examples/resnet50/resnet50 -b 3 --image-size 97
"""

import argparse
import json
import subprocess
import sys
import tempfile

import torch

from resnet import ResNet, load_safetensors, save_safetensors


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)).item()


def pytorch_train(model, x, target, args, dtype, autocast):
    model = model.to(dtype).train()
    x = x.to(dtype)
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
    parser = argparse.ArgumentParser(description=__doc__)
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

    model = ResNet(args.arch)
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
        run(args.program, "train", *common, *train)
        run(args.program, "infer", *common, "--steps", 1, "--dump-output", files["logits"])
        losses = json.load(open(files["json"]))["loss"]
        grads, saved = load_safetensors(files["grads"]), load_safetensors(files["saved"])
        logits = load_safetensors(files["logits"])["logits"]

    def fresh(dtype):
        copy = ResNet(args.arch)
        copy.load_state_dict(weights)
        return copy.to(dtype)

    with torch.no_grad():
        exact_logits = fresh(torch.float64).eval()(x.double())
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.amp):
            peer_logits = fresh(torch.float32).eval()(x)
    exact = pytorch_train(fresh(torch.float64), x, target, args, torch.float64, False)
    peer = pytorch_train(fresh(torch.float32), x, target, args, torch.float32, args.amp)

    def worst(mine, theirs):
        rows = [
            (relative(mine[n], theirs[n]), n)
            for n in theirs
            if not n.endswith("num_batches_tracked") and theirs[n].norm() > 0
        ]
        return max(rows)

    assert saved.keys() == exact[2].keys(), "state_dict names differ"
    print("relative difference by norm, worst tensor       quern - f64    PyTorch - f64    quern - PyTorch")
    rows = [
        ("logits (eval)", relative(logits, exact_logits), relative(peer_logits, exact_logits), relative(logits, peer_logits), ""),
        ("loss", relative(torch.tensor(losses), torch.tensor(exact[0])), relative(torch.tensor(peer[0]), torch.tensor(exact[0])), relative(torch.tensor(losses), torch.tensor(peer[0])), ""),
        ("gradients", worst(grads, exact[1])[0], worst(peer[1], exact[1])[0], worst(grads, peer[1])[0], worst(grads, exact[1])[1]),
        ("weights and statistics", worst(saved, exact[2])[0], worst(peer[2], exact[2])[0], worst(saved, peer[2])[0], worst(saved, exact[2])[1]),
    ]
    for name, mine, theirs, between, where in rows:
        print(f"{name:44s} {mine:14.2e} {theirs:16.2e} {between:18.2e}  {where}")
    bound = None if args.amp else 1e-4
    if bound and max(r[1] for r in rows) > bound:
        sys.exit(f"more than {bound} away from f64")


if __name__ == "__main__":
    main()
