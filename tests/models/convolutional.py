"""Convolutional networks with random weights: ShuffleNetV2, ResNet101 and EfficientNetB0 in small.

They have the depth and the operators of the published ones, and fewer channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

__all__ = ["NETWORKS", "resnet"]


def convolved(
    given: int, made: int, size: int = 1, stride: int = 1, groups: int = 1, act: type | None = None
) -> nn.Sequential:
    """Return a convolution, a BatchNorm, and an activation if there is one."""
    kernel = nn.Conv2d(given, made, size, stride, size // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(made)
    return nn.Sequential(kernel, norm) if act is None else nn.Sequential(kernel, norm, act())


class Shuffled(nn.Module):
    """A unit of ShuffleNetV2: half of the channels pass, or both branches halve the image."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        half, self.is_split = made // 2, stride == 1
        read = half if self.is_split else given
        self.first = nn.Sequential(
            convolved(read, read, 3, stride, read), convolved(read, half, act=nn.ReLU)
        )
        self.second = nn.Sequential(
            convolved(read, half, act=nn.ReLU),
            convolved(half, half, 3, stride, half),
            convolved(half, half, act=nn.ReLU),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.is_split:
            one, two = x.chunk(2, dim=1)
            x = torch.cat((one, self.second(two)), dim=1)
        else:
            x = torch.cat((self.first(x), self.second(x)), dim=1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).contiguous()
        return x.view(batch, channels, height, width)


class Bottleneck(nn.Module):
    """A unit of ResNet101."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        inner = made // 4
        self.inside = nn.Sequential(
            convolved(given, inner, act=nn.ReLU),
            convolved(inner, inner, 3, stride, act=nn.ReLU),
            convolved(inner, made),
        )
        is_same = stride == 1 and given == made
        self.beside = nn.Identity() if is_same else convolved(given, made, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inside(x)
        y += self.beside(x)
        return torch.relu_(y)


class Squeezed(nn.Module):
    """A unit of EfficientNet: channels are widened, and weighed by what they hold on average."""

    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        wide, few, self.is_residual = 6 * given, max(1, given // 4), stride == 1 and given == made
        self.widen = convolved(given, wide, act=nn.SiLU)
        self.inside = convolved(wide, wide, 3, stride, wide, nn.SiLU)
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, few, 1), nn.SiLU(), nn.Conv2d(few, wide, 1)
        )
        self.narrow = convolved(wide, made)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inside(self.widen(x))
        y = self.narrow(y * torch.sigmoid(self.weigh(y)))
        return y + x if self.is_residual else y


def network(
    unit: Callable[[int, int, int], nn.Module], stages: Sequence[tuple[int, int]], size: int = 32
) -> tuple[nn.Module, tuple[Tensor]]:
    """Return a network in evaluation and its input; `stages` are numbers of units and channels."""
    made = torch.Generator().manual_seed(0)
    layers: list[nn.Module] = [convolved(3, 8, 3, 2, act=nn.ReLU)]
    given = 8
    for count, channels in stages:
        for i in range(count):
            layers.append(unit(given, channels, 2 if i == 0 else 1))
            given = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, 10)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 3, size, size, generator=made),)


def resnet(stages: Sequence[int]) -> tuple[nn.Module, tuple[Tensor]]:
    return network(Bottleneck, [(count, 8 * 2**i) for i, count in enumerate(stages)])


NETWORKS: Final[dict[str, Callable[[], tuple[nn.Module, tuple[Tensor]]]]] = {
    "ShuffleNetV2": lambda: network(Shuffled, [(4, 16), (8, 32), (4, 64)]),
    "ResNet101": lambda: resnet((3, 4, 23, 3)),
    "EfficientNetB0": lambda: network(
        Squeezed, [(1, 8), (2, 8), (2, 12), (3, 16), (3, 20), (4, 24), (1, 32)], 128
    ),
}
