"""The networks of nn/network.h with torchvision's parameter names (timm's for efficientnet_lite0), as goldens and
comparisons have them; torchvision itself is no dependency. Nothing is drawn: no dropout, no stochastic depth."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from resnet import LAYERS, ResNet

NAMES = (
    "mobilenet_v2 mobilenet_v3_large efficientnet_b0 efficientnet_lite0 resnext50_32x4d convnext_tiny".split()
)


def round_channels(c):
    rounded = max(8, int(c + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * c else rounded


def conv_norm(inputs, outputs, kernel, stride=1, groups=1, act=nn.ReLU6, **norm):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs, **norm), *([act(inplace=True)] if act else []))


class SqueezeExcitation(nn.Module):
    def __init__(self, channels, squeezed, act, scale):
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.act, self.scale = act(inplace=True), scale()

    def forward(self, x):
        return x * self.scale(self.fc2(self.act(self.fc1(F.adaptive_avg_pool2d(x, 1)))))


class InvertedResidual(nn.Module):
    def __init__(self, name, layers, shortcut):
        super().__init__()
        setattr(self, name, nn.Sequential(*layers))
        self.name, self.shortcut = name, shortcut

    def forward(self, x):
        y = getattr(self, self.name)(x)
        return y + x if self.shortcut else y


class Classifier(nn.Module):
    def __init__(self, features, *classifier):
        super().__init__()
        self.features, self.classifier = nn.Sequential(*features), nn.Sequential(*classifier)

    def forward(self, x):
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(self.features(x), 1), 1))


def mobilenet_v2(classes):
    features, inputs = [conv_norm(3, 32, 3, 2)], 32
    rows = (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
    for expansion, outputs, depth, stride in rows:
        for i in range(depth):
            inner, s = inputs * expansion, stride if i == 0 else 1
            layers = [conv_norm(inputs, inner, 1)] if expansion != 1 else []
            layers += [conv_norm(inner, inner, 3, s, inner), *conv_norm(inner, outputs, 1, act=None)]
            features.append(InvertedResidual("conv", layers, s == 1 and inputs == outputs))
            inputs = outputs
    return Classifier([*features, conv_norm(inputs, 1280, 1)], nn.Identity(), nn.Linear(1280, classes))


def mobilenet_v3_large(classes):
    relu, swish, norm = nn.ReLU, nn.Hardswish, {"eps": 0.001, "momentum": 0.01}
    rows = [(3, 16, 16, 0, relu, 1), (3, 64, 24, 0, relu, 2), (3, 72, 24, 0, relu, 1), (5, 72, 40, 1, relu, 2)]
    rows += [(5, 120, 40, 1, relu, 1)] * 2 + [(3, 240, 80, 0, swish, 2), (3, 200, 80, 0, swish, 1)]
    rows += [(3, 184, 80, 0, swish, 1)] * 2 + [(3, 480, 112, 1, swish, 1), (3, 672, 112, 1, swish, 1)]
    rows += [(5, 672, 160, 1, swish, 2)] + [(5, 960, 160, 1, swish, 1)] * 2
    features, inputs = [conv_norm(3, 16, 3, 2, act=swish, **norm)], 16
    for kernel, inner, outputs, squeezes, act, stride in rows:
        layers = [conv_norm(inputs, inner, 1, act=act, **norm)] if inner != inputs else []
        layers.append(conv_norm(inner, inner, kernel, stride, inner, act, **norm))
        if squeezes:
            layers.append(SqueezeExcitation(inner, round_channels(inner // 4), nn.ReLU, nn.Hardsigmoid))
        layers.append(conv_norm(inner, outputs, 1, act=None, **norm))
        features.append(InvertedResidual("block", layers, stride == 1 and inputs == outputs))
        inputs = outputs
    features.append(conv_norm(inputs, 960, 1, act=swish, **norm))
    return Classifier(features, nn.Linear(960, 1280), swish(), nn.Identity(), nn.Linear(1280, classes))


# expansion, kernel, stride, outputs, depth
EFFICIENTNET = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3)]
EFFICIENTNET += [(6, 5, 2, 192, 4), (6, 3, 1, 320, 1)]


def efficientnet_b0(classes):
    features, inputs = [conv_norm(3, 32, 3, 2, act=nn.SiLU)], 32
    for expansion, kernel, stride, outputs, depth in EFFICIENTNET:
        blocks = []
        for i in range(depth):
            inner, s = inputs * expansion, stride if i == 0 else 1
            layers = [conv_norm(inputs, inner, 1, act=nn.SiLU)] if expansion != 1 else []
            layers += [conv_norm(inner, inner, kernel, s, inner, nn.SiLU)]
            layers += [SqueezeExcitation(inner, max(1, inputs // 4), nn.SiLU, nn.Sigmoid)]
            layers += [conv_norm(inner, outputs, 1, act=None)]
            blocks.append(InvertedResidual("block", layers, s == 1 and inputs == outputs))
            inputs = outputs
        features.append(nn.Sequential(*blocks))
    return Classifier([*features, conv_norm(inputs, 1280, 1, act=nn.SiLU)], nn.Identity(), nn.Linear(1280, classes))


class SameConv(nn.Conv2d):
    """TensorFlow's "same": as many outputs as inputs over the stride, the odd zero at the end."""

    def forward(self, x):
        pads = []
        for size, k, s in zip(x.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1]):
            total = max((-(-size // s) - 1) * s + k - size, 0)
            pads += [total // 2, total - total // 2]
        x = F.pad(x, pads) if any(pads) else x
        return F.conv2d(x, self.weight, None, self.stride, 0, 1, self.groups)


class LiteBlock(nn.Module):
    def __init__(self, inputs, expansion, kernel, stride, outputs):
        super().__init__()
        inner, convs = inputs * expansion, []
        if expansion != 1:
            convs.append(("conv_pw", SameConv(inputs, inner, 1, bias=False)))
        convs.append(("conv_dw", SameConv(inner, inner, kernel, stride, groups=inner, bias=False)))
        convs.append(("conv_pwl" if expansion != 1 else "conv_pw", SameConv(inner, outputs, 1, bias=False)))
        self.layers, self.shortcut = [], stride == 1 and inputs == outputs
        for i, (name, conv) in enumerate(convs):
            setattr(self, name, conv)
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(conv.out_channels, eps=1e-3, momentum=0.01))
            self.layers.append((name, f"bn{i + 1}"))

    def forward(self, x):
        y = x
        for i, (conv, norm) in enumerate(self.layers):
            y = getattr(self, norm)(getattr(self, conv)(y))
            y = F.relu6(y) if i + 1 < len(self.layers) else y
        return y + x if self.shortcut else y


class EfficientNetLite(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv_stem, self.bn1 = SameConv(3, 32, 3, 2, bias=False), nn.BatchNorm2d(32, eps=1e-3, momentum=0.01)
        inputs, stages = 32, []
        for expansion, kernel, stride, outputs, depth in EFFICIENTNET:
            blocks = []
            for i in range(depth):
                blocks.append(LiteBlock(inputs, expansion, kernel, stride if i == 0 else 1, outputs))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head = SameConv(inputs, 1280, 1, bias=False)
        self.bn2, self.classifier = nn.BatchNorm2d(1280, eps=1e-3, momentum=0.01), nn.Linear(1280, classes)

    def forward(self, x):
        x = F.relu6(self.bn1(self.conv_stem(x)))
        x = F.relu6(self.bn2(self.conv_head(self.blocks(x))))
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Permute(nn.Module):
    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.permute(self.dims)


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.block = nn.Sequential(
            *(nn.Conv2d(width, width, 7, padding=3, groups=width), Permute(0, 2, 3, 1), nn.LayerNorm(width, 1e-6)),
            *(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), Permute(0, 3, 1, 2)),
        )
        self.layer_scale = nn.Parameter(torch.ones(width, 1, 1) * 1e-6)

    def forward(self, x):
        return x + self.layer_scale * self.block(x)


class ConvNeXt(nn.Module):
    def __init__(self, classes):
        super().__init__()
        layers, inputs = [], 3
        for width, depth in ((96, 3), (192, 3), (384, 9), (768, 3)):
            if inputs == 3:
                layers.append(nn.Sequential(nn.Conv2d(3, width, 4, 4), LayerNorm2d(width, 1e-6)))
            else:
                layers.append(nn.Sequential(LayerNorm2d(inputs, 1e-6), nn.Conv2d(inputs, width, 2, 2)))
            layers.append(nn.Sequential(*(ConvNeXtBlock(width) for _ in range(depth))))
            inputs = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(LayerNorm2d(768, 1e-6), nn.Flatten(), nn.Linear(768, classes))

    def forward(self, x):
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), 1))


def network(name, num_classes=1000):
    if name in LAYERS:
        return ResNet(name, num_classes)
    if name == "resnext50_32x4d":
        return ResNet("resnet50", num_classes, groups=32, width_per_group=4)
    made = {"efficientnet_lite0": EfficientNetLite, "convnext_tiny": ConvNeXt}
    return (made | {f.__name__: f for f in (mobilenet_v2, mobilenet_v3_large, efficientnet_b0)})[name](num_classes)
