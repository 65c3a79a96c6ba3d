"""What the examples train: a transformer on the bytes of a text, and a residual network on images made of noise. Both take milliseconds."""

import os
import pathlib
from collections.abc import Iterator

import torch
from torch import nn

TEXT = pathlib.Path(__file__).resolve().parents[2] / "data" / "text" / "cooperage.txt"
CLASSES = 10
DEVICE = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")

if DEVICE.type == "cuda":
    torch.cuda.set_device(DEVICE)


class Transformer(nn.Module):
    """A language model of bytes: 1.8 MiB of gradients in 30 tensors."""

    def __init__(self, width: int = 128, layers: int = 2, heads: int = 4, length: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Bytes [batch, length] to logits of the bytes that follow, [batch, 256, length] as cross_entropy takes them."""
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=x.device)
        y = self.tokens(x) + self.positions(torch.arange(length, device=x.device))
        for layer in self.layers:
            y = layer(y, src_mask=mask, is_causal=True)
        return self.head(self.norm(y)).transpose(1, 2)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = (
            nn.Identity() if stride == 1 and channels_in == channels else nn.Conv2d(channels_in, channels, 1, stride, bias=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + self.shortcut(x))


class ResNet(nn.Sequential):
    """Three stages of two blocks, for images of 16 x 16: 2.6 MiB of gradients in 41 tensors."""

    def __init__(self, width: int = 32) -> None:
        stages = [(3, width, 1), (width, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1), (2 * width, 4 * width, 2),
                  (4 * width, 4 * width, 1)]  # fmt: skip
        super().__init__(*[Block(*stage) for stage in stages], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES))


def next_bytes(seed: int, batch: int = 2, length: int = 32, path: str | pathlib.Path = TEXT) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Bytes of the file and the bytes that follow them, without end; by `seed`: give each rank its own."""
    text = torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - length - 1, (batch,), generator=generator)
        rows = torch.stack([text[i : i + length + 1] for i in starts])
        yield rows[:, :-1], rows[:, 1:]


def noisy_images(seed: int, batch: int = 2) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Images of ten patterns under noise, and which pattern it is, without end; by `seed`: give each rank its own."""
    patterns = torch.randn(CLASSES, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    while True:
        labels = torch.randint(CLASSES, (batch,), generator=generator)
        yield patterns[labels] + torch.randn(batch, 3, 16, 16, generator=generator), labels
