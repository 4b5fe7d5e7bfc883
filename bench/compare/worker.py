"""One engine of compare_pytorch.py in a process of its own. Its argument is the job, as JSON; it sets the engine up
(compiles, packs weights, takes WARM_UP steps), answers with a line of JSON, and then for each line N on its standard
input takes a step that is not timed and N that are, and answers with their milliseconds. Between turns it waits for
the next line. With the variant "prepare" it writes what all engines read: weights, a batch, an ONNX model.
"""

import importlib
import json
import os
import sys
import time
from pathlib import Path

WARM_UP = 3  # steps, as many as the losses that are compared

SGD = {"lr": 0.005, "momentum": 0.9, "weight_decay": 1e-4}


class Unavailable(Exception):
    """Why an engine has no such variant."""


def files(job):
    folder, n = Path(job["folder"]), job["batch"]
    names = {"weights": "weights.safetensors", "batch": f"batch-{n}.safetensors"}
    names |= {"images": f"batch-{n}.npy", "onnx": f"model-{n}.onnx"}
    return {name: folder / file for name, file in names.items()}


def definitions(module):
    """tests/pytorch/networks.py and resnet.py: the networks and their files."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "pytorch"))
    return importlib.import_module(module)


def prepare(job):
    """Random weights with running statistics that fit them, a random batch, and the network as ONNX."""
    import numpy
    import torch

    torch.manual_seed(0)
    paths, image = files(job), (3, job["image_size"], job["image_size"])
    model = definitions("networks").network(job["arch"])
    with torch.no_grad():
        for module in model.modules():  # else the running variances below are those of a single batch's momentum
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None
        model.train()(torch.randn(8, *image))
    x, target = torch.randn(job["batch"], *image), torch.randint(0, 1000, (job["batch"],))
    definitions("resnet").save_safetensors(paths["weights"], model.state_dict())
    definitions("resnet").save_safetensors(paths["batch"], {"input": x, "target": target})
    numpy.save(paths["images"], x.numpy())
    if job["onnx"]:
        torch.onnx.export(model.eval(), (x,), str(paths["onnx"]), dynamo=False)


def pytorch(job):
    """A step of one of PyTorch's variants. It returns the loss in training, the logits in inference."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    layout = torch.channels_last if job["layout"] == "channels_last" else torch.contiguous_format
    paths, load = files(job), definitions("resnet").load_safetensors
    batch = load(paths["batch"])
    x, target = batch["input"].contiguous(memory_format=layout), batch["target"]
    model = definitions("networks").network(job["arch"])
    model.load_state_dict(load(paths["weights"]))
    model = model.to(memory_format=layout).train(job["mode"] == "train")
    variant, amp = job["variant"], job["dtype"] == "bf16"

    if variant == "frozen":
        # Without the cache of casts the trace holds them, and freezing folds those of the weights.
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=amp, cache_enabled=False):
            model = torch.jit.freeze(torch.jit.trace(model, x))
            if not amp:  # in bf16 it takes the casts of the trace apart from the convolutions they feed
                model = torch.jit.optimize_for_inference(model)
        amp = False  # it is in the trace
    elif variant.startswith("compiled"):
        import torch._inductor.config as inductor

        inductor.freezing = variant == "compiled_frozen"
        model = torch.compile(model)

    if job["mode"] == "infer":

        def infer():
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=amp):
                return model(x)

        return infer, torch.__version__

    optimizer = torch.optim.SGD(model.parameters(), **SGD)

    def train():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            loss = cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()
        return loss.item()

    return train, torch.__version__


def openvino(job):
    import numpy
    import openvino

    settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": job["threads"]}
    settings["INFERENCE_PRECISION_HINT"] = job["dtype"]
    core, images = openvino.Core(), numpy.load(files(job)["images"])
    request = core.compile_model(files(job)["onnx"], "CPU", settings).create_infer_request()

    def infer():
        request.infer([images], share_inputs=True)
        return request.get_output_tensor().data

    return infer, openvino.__version__.split("-")[0]


def onnxruntime(job):
    if job["dtype"] == "bf16":
        raise Unavailable("no bf16 kernels")
    import numpy
    import onnxruntime

    options, images = onnxruntime.SessionOptions(), numpy.load(files(job)["images"])
    options.intra_op_num_threads = job["threads"]
    session = onnxruntime.InferenceSession(str(files(job)["onnx"]), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: images})[0], onnxruntime.__version__


def forget_peak_memory():
    """So that VmHWM is the peak of the steps, not that of compiling."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass  # the kernel has no such thing: then it is the peak since the start


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer

    def answer(**fields):
        print(json.dumps(fields), file=answers, flush=True)

    job = json.loads(sys.argv[1])
    if job["variant"] == "prepare":
        prepare(job)
        return answer()
    make = {"openvino": openvino, "onnxruntime": onnxruntime}.get(job["variant"], pytorch)
    try:
        step, version = make(job)
    except (Unavailable, ImportError) as error:
        return answer(unavailable=str(error))
    results = [step() for _ in range(WARM_UP)]
    if job["mode"] == "infer":
        results = [float(logit) for logit in results[-1][0]]  # of the first image
    forget_peak_memory()
    answer(results=results, version=version)

    for line in sys.stdin:
        step()
        times = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - begin))
        answer(step_ms=times)


if __name__ == "__main__":
    main()
