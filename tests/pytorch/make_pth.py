"""Makes tests/goldens/*.pth with PyTorch 2.13: python tests/pytorch/make_pth.py

zip.pth, stream.pth       a state_dict of every dtype, strides and sharing, in the two forms of torch.save
zip5.pth, stream4.pth     the same by pickle's protocols 5 and 4
checkpoint.pth            what a training script keeps: a model under "model", optimizer, options, numbers
compressed.pth            zip.pth packed anew with deflate, which torch.save never does
"""

import argparse
import collections
import pathlib
import zipfile

import torch

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "goldens"


def state():
    ramp = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 4
    return collections.OrderedDict(
        f32=ramp,
        transposed=ramp.t(),
        sliced=ramp[1:, ::2],
        expanded=torch.arange(3, dtype=torch.float32).reshape(3, 1).expand(3, 4),
        channels_last=torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        parameter=torch.nn.Parameter(ramp + 1),
        f64=torch.arange(4, dtype=torch.float64) / 3,
        f16=torch.tensor([1.5, -65504, float("inf"), 2.0**-24, 0.1], dtype=torch.float16),
        bf16=torch.tensor([1.5, -3.0, 2.0**100], dtype=torch.bfloat16),
        i64=torch.tensor([-(2**62), 7]),
        i32=torch.tensor([-5, 6, 7], dtype=torch.int32),
        u8=torch.tensor([0, 255], dtype=torch.uint8),
        bool=torch.tensor([True, False, True]),
        scalar=torch.tensor(2.5),
        empty=torch.empty(0, 3),
    )


def checkpoint():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(6.0).reshape(2, 3))
    return {
        "model": torch.nn.DataParallel(model).state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "big": 2**100,
        "best": 76.1,
        "rng": torch.get_rng_state(),
        "args": argparse.Namespace(lr=0.1, device=torch.device("cpu"), dtype=torch.float32, size=torch.Size([2, 3])),
    }


if __name__ == "__main__":
    torch.save(state(), GOLDENS / "zip.pth")
    torch.save(state(), GOLDENS / "stream.pth", _use_new_zipfile_serialization=False)
    torch.save(state(), GOLDENS / "zip5.pth", pickle_protocol=5)
    torch.save(state(), GOLDENS / "stream4.pth", pickle_protocol=4, _use_new_zipfile_serialization=False)
    torch.save(checkpoint(), GOLDENS / "checkpoint.pth")
    with zipfile.ZipFile(GOLDENS / "zip.pth") as stored, zipfile.ZipFile(
        GOLDENS / "compressed.pth", "w", zipfile.ZIP_DEFLATED
    ) as packed:
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
