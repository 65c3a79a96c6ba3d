"""The demo model's family as its user would write it in eager PyTorch: RMSNorm, rotary positions, SwiGLU."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, inner, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.w1, self.w3 = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x, cosine, sine):
        batch, length, width = x.shape
        h = self.ln1(x)
        q, k, v = (part(h).view(batch, length, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(rotated(q, cosine, sine), rotated(k, cosine, sine), v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, width))
        h = self.ln2(x)
        return x + self.w2(functional.silu(self.w1(h)) * self.w3(h))


def rotated(x, cosine, sine):
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2)


class LanguageModel(nn.Module):
    def __init__(self, vocab_size, context_length, d_model, d_ff, num_layers, num_heads, rope_theta=10000.0):
        super().__init__()
        self.token_embeddings = nn.Embedding(vocab_size, d_model)
        self.blocks = nn.ModuleList(Block(d_model, d_ff, num_heads) for _ in range(num_layers))
        self.ln_final = nn.RMSNorm(d_model, eps=1e-5)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        size = d_model // num_heads
        turns = torch.outer(torch.arange(context_length), rope_theta ** (-torch.arange(0, size, 2) / size))
        self.register_buffer("cosine", turns.cos(), persistent=False)
        self.register_buffer("sine", turns.sin(), persistent=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.token_embeddings(tokens)
        for block in self.blocks:
            x = block(x, self.cosine[:length], self.sine[:length])
        return self.lm_head(self.ln_final(x))


def loss_of(model, windows):
    """windows: batch x (sequence + 1) tokens."""
    logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
