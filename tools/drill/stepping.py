"""What the drill's scripts step: a transformer language model on the GPU, or a small one on the CPU, and a clock for either."""

import functools
import random
import time
from typing import NamedTuple

import torch
from torch import nn

# layers, width, heads, vocabulary, sequences, tokens
GPT2_MEDIUM = (24, 1024, 16, 50257, 8, 1024)
TINY = (6, 192, 4, 2048, 4, 64)


class StepTimes(NamedTuple):
    step_s: float
    backward_s: float
    queued_s: float  # of backward, until the host had queued all of it
    began: object  # the mark of backward's start


class Job:
    """A model with its batch, stepped on one device."""

    def __init__(self, device):
        self.on_gpu = device == "cuda"
        self.device = torch.device("cuda", 0) if self.on_gpu else torch.device("cpu")
        random.seed(1)
        torch.manual_seed(1)
        torch.set_num_threads(1)
        torch.set_float32_matmul_precision("high" if self.on_gpu else "highest")
        layers, width, heads, vocabulary, batch, length = GPT2_MEDIUM if self.on_gpu else TINY
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, nn.functional.gelu, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.model = nn.Sequential(nn.Embedding(vocabulary, width), encoder, nn.Linear(width, vocabulary, bias=False))
        self.model[2].weight = self.model[0].weight
        self.model.to(self.device, torch.bfloat16 if self.on_gpu else torch.float32)
        for parameter in self.model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        mask = nn.Transformer.generate_square_subsequent_mask(length, self.device, self.model[0].weight.dtype)
        encoder.forward = functools.partial(encoder.forward, mask=mask, is_causal=True)
        self.parameters = dict(self.model.named_parameters())
        self.tokens = torch.randint(vocabulary, (batch, length + 1), device=self.device)

    def synchronize(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def mark(self):
        """A moment of the current stream, or of the host."""
        return torch.cuda.current_stream().record_event(torch.cuda.Event(enable_timing=True)) if self.on_gpu else time.perf_counter()

    def seconds(self, start, end):
        return start.elapsed_time(end) * 1e-3 if self.on_gpu else end - start

    def loss(self, net):
        return nn.functional.cross_entropy(net(self.tokens[:, :-1]).flatten(0, 1), self.tokens[:, 1:].flatten())

    def step(self, net, before=lambda: None):
        self.synchronize()
        before()
        start = self.mark()
        loss = self.loss(net)
        middle, host = self.mark(), time.perf_counter()
        loss.backward()
        back, host = self.mark(), time.perf_counter() - host
        self.model.zero_grad()
        end = self.mark()
        self.synchronize()
        return StepTimes(self.seconds(start, end), self.seconds(middle, back), host, middle)
