"""ResNet v1.5 (stride in the 3x3) in PyTorch, with torchvision's parameter names, and its file format."""

import json
import struct

import torch
from torch import nn

LAYERS = {
    "resnet18": ("basic", (2, 2, 2, 2)),
    "resnet34": ("basic", (3, 4, 6, 3)),
    "resnet50": ("bottleneck", (3, 4, 6, 3)),
    "resnet101": ("bottleneck", (3, 4, 23, 3)),
    "resnet152": ("bottleneck", (3, 8, 36, 3)),
}


class Block(nn.Module):
    def __init__(self, kind, inputs, width, stride, groups=1, width_per_group=64):
        super().__init__()
        outputs = width * (4 if kind == "bottleneck" else 1)
        shapes = [(1, 1), (3, stride), (1, 1)] if kind == "bottleneck" else [(3, stride), (3, 1)]
        inner = width * width_per_group // 64 * groups
        widths = [inputs, inner, inner, outputs] if kind == "bottleneck" else [inputs, width, outputs]
        self.convs = len(shapes)
        for i, (kernel, step) in enumerate(shapes):
            g = groups if kernel == 3 else 1
            conv = nn.Conv2d(widths[i], widths[i + 1], kernel, step, kernel // 2, groups=g, bias=False)
            setattr(self, f"conv{i + 1}", conv)
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(widths[i + 1]))
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = x
        for i in range(1, self.convs + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.convs:
                y = self.relu(y)
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, arch="resnet50", num_classes=1000, groups=1, width_per_group=64):
        super().__init__()
        kind, depths = LAYERS[arch]
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for i, depth in enumerate(depths):
            width, blocks = 64 << i, []
            for j in range(depth):
                stride = 2 if i > 0 and j == 0 else 1
                blocks.append(Block(kind, inputs, width, stride, groups, width_per_group))
                inputs = width * (4 if kind == "bottleneck" else 1)
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


DTYPES = {torch.uint8: "U8", torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.int64: "I64"}


def save_safetensors(path, tensors):
    header, offset, data = {}, 0, []
    for name, t in tensors.items():
        raw = t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": DTYPES[t.dtype],
            "shape": list(t.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        offset += len(raw)
        data.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def load_safetensors(path):
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header, data = json.loads(f.read(size)), f.read()
    dtypes = {name: dtype for dtype, name in DTYPES.items()}
    tensors = {}
    for name, info in header.items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            t = torch.frombuffer(bytearray(data[begin:end]), dtype=dtypes[info["dtype"]])
            tensors[name] = t.reshape(info["shape"])
    return tensors
