"""VGG16 (arXiv 1409.1556, configuration D), without batch normalization."""

from torch import Tensor, nn

_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """138.4 million parameters with 1,000 classes, 90% of them in the three last layers.

    Args:
        num_classes: length of the output.
    """

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for widths in _WIDTHS:
            for width in widths:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(7)  # images of 224 pixels leave 7x7 as they are
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (N, classes), of images, shape (N, 3, height, width)."""
        logits: Tensor = self.classifier(self.pool(self.features(images)).flatten(1))
        return logits
