"""Weights that leave `firkin train` and come back: the exported file, read here, gives the loss that the program printed.

FIRKIN names the binary. The models are reference_test.py's, written anew in PyTorch. Where the package safetensors is installed, it reads the file as well.
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import types
import unittest

import torch

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "model"))
os.environ.setdefault("EXPORT_MODEL", "")
from reference_test import cs336, gpt2  # noqa: E402

FIRKIN = os.environ["FIRKIN"]
SEQUENCE, LAYERS, HEADS, WINDOWS = 32, 2, 2, 8
SIZES = ["--d-model", 32, "--d-ff", 64, "--num-layers", LAYERS, "--num-heads", HEADS, "--sequence", SEQUENCE, "--global-batch", 4]
HELD_SHARE = 0.1


def read_safetensors(file):
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
        first, end = entry["data_offsets"]
        tensors[name] = torch.frombuffer(bytearray(data[first:end]), dtype=torch.float32).reshape(entry["shape"])
    return tensors


def write_safetensors(file, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        content = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


def published_gpt2(width, inner, context):
    """A GPT-2 as it is published: names with "transformer." before them, Conv1D's layout [in, out], masks beside the weights, a tied head that is stored
    as well."""
    generator = torch.Generator().manual_seed(7)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator) * 0.05

    tensors = {"wte.weight": drawn(256, width), "wpe.weight": drawn(context, width)}
    for i in range(LAYERS):
        tensors |= {f"h.{i}.ln_{k}.weight": 1 + drawn(width) for k in (1, 2)} | {f"h.{i}.ln_{k}.bias": drawn(width) for k in (1, 2)}
        for name, rows, columns in [("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width), ("mlp.c_fc", width, inner), ("mlp.c_proj", inner, width)]:
            tensors |= {f"h.{i}.{name}.weight": drawn(rows, columns), f"h.{i}.{name}.bias": drawn(columns)}
        tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, context, context).tril()
    tensors |= {"ln_f.weight": 1 + drawn(width), "ln_f.bias": drawn(width)}
    return {f"transformer.{name}": tensor for name, tensor in tensors.items()} | {"lm_head.weight": tensors["wte.weight"]}


def our_names(published):
    """Of GPT-2's published names and layouts."""
    ours = {}
    for name, tensor in published.items():
        turned = ".c_" in name and name.endswith(".weight")
        for there, here in [("wte.", "token_embeddings."), ("wpe.", "position_embeddings."), ("ln_f.", "ln_final."), ("attn.c_", "attn_c_"),
                            ("mlp.c_", "mlp_c_")]:  # fmt: skip
            name = name.replace(there, here)
        ours["blocks" + name[1:] if name.startswith("h.") else name] = tensor.T if turned else tensor
    return ours


def logits_of(forward, weights, rows):
    model = types.SimpleNamespace(weights={name: t.double() for name, t in weights.items()}, layers=LAYERS, heads=HEADS, rope_theta=10000.0)
    with torch.no_grad():
        return forward(model, rows)


def likeliest_text(forward, weights, prompt, count):
    tokens = list(prompt.encode())
    for _ in range(count):
        tokens.append(logits_of(forward, weights, torch.tensor([tokens]))[0, -1].argmax().item())
    return bytes(tokens[len(prompt) :])


def held_loss(forward, weights):
    """Over the first windows of the shipped text's last tenth."""
    text = (ROOT / "data" / "text" / "cooperage.txt").read_bytes()
    windows = (int(len(text) * HELD_SHARE) - 1) // SEQUENCE
    first = len(text) - windows * SEQUENCE - 1
    rows = torch.stack([torch.tensor(list(text[first + k * SEQUENCE :][: SEQUENCE + 1])) for k in range(min(windows, WINDOWS))])
    logits = logits_of(forward, weights, rows[:, :-1])
    chosen = logits.gather(-1, rows[:, 1:].unsqueeze(-1)).squeeze(-1)
    return (torch.logsumexp(logits, -1) - chosen).mean().item()


class Weights(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, *words):
        words = [FIRKIN, "train", "--ranks", 1, *SIZES, "--evaluate-windows", WINDOWS, "--out", self.folder / "out", *words]
        result = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in (self.folder / "out/metrics.jsonl").read_text().splitlines()]

    def check(self, forward, named, *model):
        file = self.folder / "model.safetensors"
        last = self.train(*model, "--steps", 20, "--export", file)[-1]
        published = read_safetensors(file)
        self.assertAlmostEqual(held_loss(forward, named(published)), last["held_loss"], delta=1e-4)
        unchanged = self.train(*model, "--steps", 1, "--learning-rate", 0, "--seed", 5, "--import", file)[-1]
        self.assertAlmostEqual(unchanged["held_loss"], last["held_loss"], delta=1e-6)
        try:
            import safetensors.torch
        except ImportError:
            return
        read = safetensors.torch.load_file(file)
        self.assertEqual(read.keys(), published.keys())
        for name, tensor in published.items():
            self.assertTrue(torch.equal(read[name], tensor), name)

    def test_of_a_published_gpt2_that_is_trained_further(self):
        width, inner, context = 32, 64, 48
        published, ours = self.folder / "published.safetensors", self.folder / "ours.safetensors"
        weights = published_gpt2(width, inner, context)
        write_safetensors(published, weights)
        known = {name.removeprefix("transformer."): t for name, t in weights.items() if not name.endswith(".attn.bias") and name != "lm_head.weight"}
        model = ["--model", "gpt2", "--vocab-size", 256, "--context-length", context, "--import", published]
        unchanged = self.train(*model, "--steps", 1, "--learning-rate", 0)[-1]
        self.assertAlmostEqual(unchanged["held_loss"], held_loss(gpt2, our_names(known)), delta=1e-5)

        tuned = self.train(*model, "--steps", 60, "--learning-rate", "1e-2", "--export", ours)[-1]
        self.assertLess(tuned["held_loss"], unchanged["held_loss"] - 1)
        read = read_safetensors(ours)
        self.assertEqual({name: t.shape for name, t in read.items()}, {name: t.shape for name, t in known.items()})
        self.assertAlmostEqual(tuned["held_loss"], held_loss(gpt2, our_names(read)), delta=1e-5)
        words = [FIRKIN, "sample", self.folder / "out", "--prompt", "The", "--count", 20, "--temperature", 0, "--json"]
        said = json.loads(subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True, timeout=120).stdout)
        self.assertEqual(said["text"].encode(), likeliest_text(gpt2, our_names(read), "The", 20))

    def test_of_the_demo_models_family(self):
        self.check(cs336, dict)

    def test_of_gpt2_under_its_published_names(self):
        self.check(gpt2, our_names, "--model", "gpt2", "--vocab-size", 256)


if __name__ == "__main__":
    unittest.main(verbosity=2)
