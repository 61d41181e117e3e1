"""What the synthetic benchmark trains: models and random batches."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.train.models.resnet import ResNet50
from bench.train.models.transformer import Shape, Transformer
from bench.train.models.vgg import VGG16

_NUM_CLASSES = 1000


@dataclass(frozen=True, slots=True)
class Task:
    """A model and its batches.

    Attributes:
        make: builds the model; the caller seeds.
        batch: makes inputs and labels for a batch size and a size (pixels, or tokens of a row).
        batch_size, size: defaults with which two cores need about a second for a step of 4 ranks.
        unit: what a batch is made of.
    """

    make: Callable[[int], nn.Module]
    batch: Callable[[int, int], tuple[Tensor, Tensor]]
    batch_size: int
    size: int
    unit: str = "img"


def _images(batch_size: int, pixels: int) -> tuple[Tensor, Tensor]:
    images = torch.randn(batch_size, 3, pixels, pixels)
    return images, torch.randint(0, _NUM_CLASSES, (batch_size,))


def _rows(batch_size: int, length: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, Shape().vocabulary, (batch_size, length + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


TASKS: Mapping[str, Task] = {
    "resnet50": Task(lambda _: ResNet50(_NUM_CLASSES), _images, batch_size=16, size=64),
    "vgg16": Task(lambda _: VGG16(_NUM_CLASSES), _images, batch_size=8, size=64),
    "transformer": Task(
        lambda length: Transformer(Shape(context=length)), _rows, batch_size=32, size=64, unit="seq"
    ),
}
