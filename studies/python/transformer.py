"""What the programs of this folder share: a transformer as its user would write it, and medians of what was measured."""

import math
import statistics

import torch
import torch.distributed as dist
from torch import nn


class Transformer(nn.Module):
    def __init__(self, width, layers, vocabulary=256):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        block = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.blocks(self.embedding(tokens)))


def training_loss(model, tokens):
    """tokens: batch x (sequence + 1)."""
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def slowest(times):
    tensor = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def median_and_interval(values):
    """With a 95 % interval: order statistics around the median, as far apart as the binomial distribution asks."""
    ordered, n = sorted(values), len(values)
    tail = 0.0
    for k in range(n):
        tail += math.comb(n, k) / 2**n
        if tail > 0.025:
            break
    k = max(k, 1)
    return statistics.median(ordered), ordered[k - 1], ordered[n - k]
