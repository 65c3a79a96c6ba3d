"""Logits and gradients of the C++ models against the same mathematics written anew with elementary operations in PyTorch.

EXPORT_MODEL names the program that writes a C++ model's weights, tokens, logits, loss and gradients.
"""

import json
import math
import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy as np
import torch


class Exported:
    """What the C++ program wrote, in float64."""

    def __init__(self, family, head):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([os.environ["EXPORT_MODEL"], family, head, folder], check=True)
            root = pathlib.Path(folder)
            manifest = json.loads((root / "manifest.json").read_text())
            tensors = {
                name: torch.from_numpy(np.fromfile(root / name, dtype=meta["dtype"]).reshape(meta["shape"]))
                for name, meta in manifest["tensors"].items()
            }
        self.heads, self.layers, self.rope_theta = manifest["num_heads"], manifest["num_layers"], manifest["rope_theta"]
        self.window, self.logits, self.loss = (tensors[name] for name in ("window", "logits", "loss"))
        self.gradients = {n[len("gradient:") :]: t.double() for n, t in tensors.items() if n.startswith("gradient:")}
        self.weights = {n[len("weight:") :]: t.double().requires_grad_() for n, t in tensors.items() if n.startswith("weight:")}


def attention(q, k, v, heads, position=lambda x: x):
    batch, length, width = q.shape
    q, k, v = (x.reshape(batch, length, heads, width // heads).permute(0, 2, 1, 3) for x in (q, k, v))
    scores = position(q) @ position(k).transpose(-1, -2) / math.sqrt(width // heads)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    weights = torch.exp(scores.masked_fill(future, -math.inf) - scores.amax(-1, keepdim=True).detach())
    mixed = (weights / weights.sum(-1, keepdim=True)) @ v
    return mixed.permute(0, 2, 1, 3).reshape(batch, length, width)


def rotary(x, theta):
    """Each pair of neighbouring dimensions as a complex number, turned by position / theta^(2i/d)."""
    length, dimension = x.shape[-2:]
    frequencies = theta ** (-torch.arange(0, dimension, 2, dtype=torch.float64) / dimension)
    turns = torch.polar(torch.ones(length, dimension // 2, dtype=torch.float64), torch.outer(torch.arange(length).double(), frequencies))
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], dimension // 2, 2).contiguous())
    return torch.view_as_real(pairs * turns).reshape(x.shape)


def rms_norm(x, gain):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * gain


def layer_norm(x, gain, bias):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * gain + bias


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def head_of(weights):
    return weights["lm_head.weight" if "lm_head.weight" in weights else "token_embeddings.weight"]


def cs336(model, tokens):
    w = model.weights
    x = w["token_embeddings.weight"][tokens]
    for i in range(model.layers):
        b = {name[len(f"blocks.{i}.") :]: t for name, t in w.items() if name.startswith(f"blocks.{i}.")}
        h = rms_norm(x, b["ln1.weight"])
        q, k, v = (h @ b[f"{m}.weight"].T for m in "qkv")
        x = x + attention(q, k, v, model.heads, lambda h: rotary(h, model.rope_theta)) @ b["o.weight"].T
        h = rms_norm(x, b["ln2.weight"])
        gate = h @ b["w1.weight"].T
        x = x + (gate * torch.sigmoid(gate) * (h @ b["w3.weight"].T)) @ b["w2.weight"].T
    return rms_norm(x, w["ln_final.weight"]) @ head_of(w).T


def gpt2(model, tokens):
    w = model.weights
    x = w["token_embeddings.weight"][tokens] + w["position_embeddings.weight"][: tokens.shape[1]]
    for i in range(model.layers):
        b = {name[len(f"blocks.{i}.") :]: t for name, t in w.items() if name.startswith(f"blocks.{i}.")}

        def linear(name, h):
            return h @ b[f"{name}.weight"].T + b[f"{name}.bias"]

        h = layer_norm(x, b["ln_1.weight"], b["ln_1.bias"])
        q, k, v = linear("attn_c_attn", h).split(x.shape[-1], dim=-1)
        x = x + linear("attn_c_proj", attention(q, k, v, model.heads))
        h = layer_norm(x, b["ln_2.weight"], b["ln_2.bias"])
        x = x + linear("mlp_c_proj", gelu_tanh(linear("mlp_c_fc", h)))
    return layer_norm(x, w["ln_final.weight"], w["ln_final.bias"]) @ head_of(w).T


def relative_error(ours, reference):
    return ((ours.double() - reference).norm() / reference.norm()).item()


class Reference(unittest.TestCase):
    BAR = 1e-4  # relative, in the Euclidean norm of each tensor

    def check(self, family, head, forward):
        model = Exported(family, head)
        self.assertEqual("lm_head.weight" in model.weights, head == "untied")
        logits = forward(model, model.window[:, :-1])
        targets = model.window[:, 1:]
        chosen = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        loss = (torch.logsumexp(logits, -1) - chosen).mean()
        loss.backward()
        self.assertLess(relative_error(model.logits, logits), self.BAR)
        self.assertLess(relative_error(model.loss, loss), self.BAR)
        self.assertEqual(model.gradients.keys(), model.weights.keys())
        for name, gradient in model.gradients.items():
            self.assertLess(relative_error(gradient, model.weights[name].grad), self.BAR, name)

    def test_each_family_with_a_head_of_its_own_and_a_tied_one(self):
        for family, forward in (("cs336", cs336), ("gpt2", gpt2)):
            for head in ("untied", "tied"):
                with self.subTest(family=family, head=head):
                    self.check(family, head, forward)
