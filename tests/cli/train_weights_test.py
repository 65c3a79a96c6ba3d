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
SIZES = ["--d-model", 32, "--d-ff", 64, "--num-layers", LAYERS, "--num-heads", HEADS, "--sequence", SEQUENCE, "--batch", 4]
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


def held_loss(forward, weights):
    """Over the first windows of the shipped text's last tenth."""
    text = (ROOT / "data" / "text" / "cooperage.txt").read_bytes()
    windows = (int(len(text) * HELD_SHARE) - 1) // SEQUENCE
    first = len(text) - windows * SEQUENCE - 1
    rows = torch.stack([torch.tensor(list(text[first + k * SEQUENCE :][: SEQUENCE + 1])) for k in range(min(windows, WINDOWS))])
    model = types.SimpleNamespace(weights={name: t.double() for name, t in weights.items()}, layers=LAYERS, heads=HEADS, rope_theta=10000.0)
    with torch.no_grad():
        logits = forward(model, rows[:, :-1])
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

    def test_of_the_demo_models_family(self):
        self.check(cs336, dict)

    def test_of_gpt2_under_its_published_names(self):
        self.check(gpt2, our_names, "--model", "gpt2", "--vocab-size", 256)


if __name__ == "__main__":
    unittest.main(verbosity=2)
