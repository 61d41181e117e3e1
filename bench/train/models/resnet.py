"""ResNet-50 (arXiv 1512.03385), with strides in the 3x3 convolutions, as most libraries."""

from collections.abc import Iterator

from torch import Tensor, nn

_LAYERS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
_EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = _EXPANSION * width
        self.branch = nn.Sequential(
            nn.Conv2d(in_channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        output: Tensor = self.activation(self.branch(images) + self.shortcut(images))
        return output


class ResNet50(nn.Module):
    """25.6 million parameters with 1,000 classes.

    Args:
        num_classes: length of the output.
    """

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        self.blocks = nn.Sequential(*_blocks())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(512 * _EXPANSION, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (N, classes), of images, shape (N, 3, height, width)."""
        logits: Tensor = self.classifier(self.pool(self.blocks(self.stem(images))).flatten(1))
        return logits


def _blocks() -> Iterator[Bottleneck]:
    channels = 64
    for num_blocks, width, stride in _LAYERS:
        for block in range(num_blocks):
            yield Bottleneck(channels, width, stride if block == 0 else 1)
            channels = _EXPANSION * width
