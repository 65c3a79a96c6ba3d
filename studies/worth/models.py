"""Profiles of six models, from their architectures: what firkin predict reads as tensors.csv.

A model is a list of operations in the order of forward, each with its floating-point operations for the local batch and its
parameters. Backward goes through them in reverse; a gradient is ready when its operation's backward is done, and a parameter is
needed when its operation's forward begins. Norms, biases and element-wise operations take no time of their own.
"""

import dataclasses
import math

BYTES = 4  # gradients in float32, as DDP has them under autocast
TOKENS = 8192  # of a rank and a step, of every transformer: 8 sequences of GPT-2, 64 of BERT's first phase, 4 of the 7B
IMAGES = 128

# Peak of dense bf16 (NVIDIA's data sheets), and the part of it that training reaches. github.com/mosaicml/llm-foundry, commit 061f2c7c,
# scripts/train/benchmarking: sequences of 1,024 and 2,048, models of 125m to 7b reach 43 to 64 % on 8 A100s (80 GB), of 760m to 7b 35 to 46 % on 8
# H100s. There is no A40.
PEAK, PART = {"A100": 312e12, "H100": 989e12, "A40": 149.7e12}, {"A100": 0.5, "H100": 0.4, "A40": 0.5}
GPUS = {gpu: PEAK[gpu] * PART[gpu] for gpu in PEAK}
# Images per second of one A100 in mixed precision: github.com/NVIDIA/DeepLearningExamples, PyTorch/Classification/ConvNets/resnet50v1.5.
# Other GPUs by the ratio of the rates above. Convolutions reach a far smaller part of the peak than transformers.
RESNET_IMAGES_S = 2470


@dataclasses.dataclass(frozen=True)
class Operation:
    name: str
    flops: float = 0  # of forward
    parameters: tuple = ()  # (suffix, elements), in the order of registration
    backward: float = 2  # times forward: gradients of inputs and of weights; 1 where weights are frozen


@dataclasses.dataclass(frozen=True)
class Model:
    title: str
    hidden: int  # what Transformers' formula takes: the width, or the largest of hidden_sizes
    operations: tuple
    step_s: float | None = None  # forward and backward on an A100, where published; else by floating-point operations

    @property
    def elements(self):
        return sum(count for operation in self.operations for _, count in operation.parameters)


@dataclasses.dataclass(frozen=True)
class Profile:
    rows: tuple  # (name, bytes, ready_s, needed_s) in gradient-ready order
    forward_s: float
    backward_s: float

    def csv(self):
        return "name,bytes,ready_s,needed_s\n" + "".join(f"{name},{size},{ready:.9g},{needed:.9g}\n" for name, size, ready, needed in self.rows)


def linear(name, inputs, outputs, tokens, bias=True):
    weight = ("weight", inputs * outputs)
    return Operation(name, 2.0 * tokens * inputs * outputs, (weight, ("bias", outputs)) if bias else (weight,))


def norm(name, width, bias=True):
    return Operation(name, 0, (("weight", width), ("bias", width)) if bias else (("weight", width),))


def embedding(name, rows, width):
    return Operation(name, 0, (("weight", rows * width),))


def attention(name, width, sequence, tokens, backward=2):
    return Operation(name, 4.0 * tokens * sequence * width, (), backward)


def gpt2(title, width, layers, vocabulary=50257, context=1024):
    """Radford et al. 2019, in the order of registration of its usual implementation. The head's weight is the token embedding's: its
    gradient is complete when backward ends."""
    operations = [embedding("wte", vocabulary, width), embedding("wpe", context, width)]
    for i in range(layers):
        operations += [norm(f"h.{i}.ln_1", width), linear(f"h.{i}.attn.c_attn", width, 3 * width, TOKENS),
                       attention(f"h.{i}.attn", width, context, TOKENS), linear(f"h.{i}.attn.c_proj", width, width, TOKENS),
                       norm(f"h.{i}.ln_2", width), linear(f"h.{i}.mlp.c_fc", width, 4 * width, TOKENS),
                       linear(f"h.{i}.mlp.c_proj", 4 * width, width, TOKENS)]  # fmt: skip
    operations += [norm("ln_f", width), Operation("lm_head", 2.0 * TOKENS * width * vocabulary)]
    return Model(title, width, tuple(operations))


def bert_large(width=1024, layers=24, vocabulary=30522, sequence=128):
    """Devlin et al. 2018 with both heads of pretraining; the decoder's weight is the word embedding's."""
    operations = [embedding("word", vocabulary, width), embedding("position", 512, width), embedding("type", 2, width), norm("embedding.norm", width)]
    for i in range(layers):
        operations += [linear(f"{i}.{name}", width, width, TOKENS) for name in ("query", "key", "value")]
        operations += [attention(f"{i}.attention", width, sequence, TOKENS), linear(f"{i}.attention.output", width, width, TOKENS),
                       norm(f"{i}.attention.norm", width), linear(f"{i}.intermediate", width, 4 * width, TOKENS),
                       linear(f"{i}.output", 4 * width, width, TOKENS), norm(f"{i}.output.norm", width)]  # fmt: skip
    operations += [linear("pooler", width, width, TOKENS / sequence), linear("transform", width, width, TOKENS), norm("transform.norm", width),
                   Operation("decoder", 2.0 * TOKENS * width * vocabulary, (("bias", vocabulary),)),
                   linear("seq_relationship", width, 2, TOKENS / sequence)]  # fmt: skip
    return Model("BERT-large", width, tuple(operations))


def resnet50():
    """He et al. 2015, with the stride in the 3 x 3 convolution ("v1.5"), 224 x 224."""
    operations = []

    def convolution(name, inputs, outputs, kernel, side):
        count = inputs * outputs * kernel * kernel
        operations.append(Operation(f"{name}.conv", 2.0 * IMAGES * count * side * side, (("weight", count),)))
        operations.append(norm(f"{name}.norm", outputs))

    convolution("stem", 3, 64, 7, 112)
    inputs = 64
    for stage, (blocks, width, side) in enumerate([(3, 64, 56), (4, 128, 28), (6, 256, 14), (3, 512, 7)]):
        for block in range(blocks):
            name, first = f"{stage}.{block}", block == 0
            convolution(f"{name}.1", inputs, width, 1, side * 2 if first and stage else side)
            convolution(f"{name}.2", width, width, 3, side)
            convolution(f"{name}.3", width, 4 * width, 1, side)
            if first:
                convolution(f"{name}.downsample", inputs, 4 * width, 1, side)
            inputs = 4 * width
    operations.append(linear("fc", inputs, 1000, IMAGES))
    return Model("ResNet-50", inputs, tuple(operations), IMAGES / RESNET_IMAGES_S)


def llama_lora(rank=16, width=4096, inner=11008, layers=32, vocabulary=32000, sequence=2048):
    """Llama 2 7B (Touvron et al. 2023) whose seven linear layers of a block have adapters of rank 16; everything else is frozen."""
    operations = []
    for i in range(layers):
        sizes = [("q", width, width), ("k", width, width), ("v", width, width), ("o", width, width), ("gate", width, inner), ("up", width, inner),
                 ("down", inner, width)]  # fmt: skip
        for name, inputs, outputs in sizes:
            if name == "o":
                operations.append(attention(f"{i}.attention", width, sequence, TOKENS))
            operations.append(Operation(f"{i}.{name}", 2.0 * TOKENS * inputs * outputs, (), 1))
            operations += [linear(f"{i}.{name}.lora_A", inputs, rank, TOKENS, False), linear(f"{i}.{name}.lora_B", rank, outputs, TOKENS, False)]
    operations.append(Operation("lm_head", 2.0 * TOKENS * width * vocabulary, (), 1))
    return Model("7B, LoRA", width, tuple(operations))


def cs336_xl(tokens, sequence, norms_last):
    """The xl of Stanford's CS336 as of 2025, float32: 435 tensors. norms_last: a block registers both norms behind its linear layers."""
    width, inner, vocabulary, layers = 1600, 6400, 10000, 48
    operations = [embedding("token_embeddings", vocabulary, width)]
    for i in range(layers):
        attend = [linear(f"{i}.{name}", width, width, tokens, False) for name in "qkv"]
        attend += [attention(f"{i}.attention", width, sequence, tokens), linear(f"{i}.o", width, width, tokens, False)]
        feed = [linear(f"{i}.w1", width, inner, tokens, False), linear(f"{i}.w2", inner, width, tokens, False), linear(f"{i}.w3", width, inner, tokens, False)]
        first, second = norm(f"{i}.ln1", width, False), norm(f"{i}.ln2", width, False)
        operations += [*attend, *feed, first, second] if norms_last else [first, *attend, second, *feed]
    operations += [norm("ln_final", width, False), linear("lm_head", width, vocabulary, tokens, False)]
    return Model("xl of CS336", width, tuple(operations))


def all_models():
    return [resnet50(), bert_large(), gpt2("GPT-2 small", 768, 12), gpt2("gpt2-large", 1280, 36), gpt2("gpt2-xl", 1600, 48), llama_lora()]


def flops(model):
    """Of forward, and of backward."""
    forward = math.fsum(operation.flops for operation in model.operations)
    return forward, math.fsum(operation.flops * operation.backward for operation in model.operations)


def step_s(model, gpu):
    """Forward and backward: what is published of the model, or its floating-point operations at the GPU's rate."""
    return model.step_s * GPUS["A100"] / GPUS[gpu] if model.step_s else sum(flops(model)) / GPUS[gpu]


def profile(model, seconds):
    """Of a model whose forward and backward take so long together."""
    forward, _ = flops(model)
    s_per_flop = seconds / sum(flops(model))
    needed, spent = {}, 0.0
    for operation in model.operations:
        needed[operation.name] = spent * s_per_flop
        spent += operation.flops
    rows, spent = [], 0.0
    for operation in reversed(model.operations):
        spent += operation.flops * operation.backward
        rows += [(f"{operation.name}.{suffix}", count * BYTES, spent * s_per_flop, needed[operation.name])
                 for suffix, count in reversed(operation.parameters)]  # fmt: skip
    return Profile(tuple(rows), forward * s_per_flop, rows[-1][2])
