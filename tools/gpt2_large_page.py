"""docs/gpt2_large_a100.md, made anew: its text, the output of every command that it shows, and its images.

Usage: gpt2_large_page.py FIRKIN REPOSITORY      from the repository's root: tools/gpt2_large_page.py build/firkin .
"""

import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

TEXT = """# gpt2-large on 8 A100s: which bucket size?

Seed question: CMSC 828G, assignment 2, part 2. The measurements are the course's (`data/README.md`); everything below is computed from them by the
commands shown. This page is written by `tools/gpt2_large_page.py build/firkin .`

## The model in two paragraphs

Backward makes the gradients one after another: the time g_l of each layer says when its gradients exist. A bucket can be sent when its last gradient
exists and the bucket before it is out of the way; sending S bytes takes a(S). So bucket k ends at
`end_k = max(ready_k + a(S_k), end_{k-1} + g(S_k))`, and the backward pass with its communication takes
`T = max(T_backward, end_last)`. Many small buckets pay a's latency many times over; few large ones leave the last of them uncovered. The gap g(S) is a(S)
here, because the course measured no calls queued back to back.

a(x) is the measured table, interpolated on logarithmic axes, and neither monotone nor smooth: with a standard deviation of up to half of
the mean, its points decide little between neighbouring caps. The input embedding and the output head are one tied tensor of 257 MB. Its
gradient is complete only when the first layer's backward has run, so it cannot be hidden, and no bucket size can beat the
time of its all-reduce.

## The inputs

{import}

## The prediction

{predict}

`gpt2/report.html` holds T(b) as a chart and the last table as heat maps; two of them:

![The best cap by input and factor](images/gpt2_large_sensitivity_cap.svg)
![What keeping the cap costs, by latency and bandwidth](images/gpt2_large_keep_cap.svg)

## What the output says

- **alpha and beta**: the line `a(x) fits`. Latency is milliseconds, not microseconds: so large a cost per call is why one bucket per tensor doubles the
  backward time.
- **b\\***: a cap of about 50 MiB, but everything from 8 to 64 MiB lies within 1 % of it, which is far less than the scatter of the measured a(x). PyTorch's
  default of 25 MiB loses 0.4 % here.
- **The plan**: five buckets instead of 51, for the same time: large ones while they hide behind the blocks, then smaller ones so that the link is free when
  the last gradients come. `bucket_cap_mb_list` is what PyTorch 2.13's `DistributedDataParallel` takes to make the same buckets.
- **The floor**: the last bucket holds the tied gradient, ready when backward ends. Its all-reduce is the exposed time of the best
  cap and of the best plan alike; no plan can go below it without splitting or untying the tensor.
- **Half or twice of any input** moves the backward time, and moves the best cap by less than the width of the flat region; the last lines give the
  caps that stay within 1 %. Staying with 50 MiB costs something only where the link is the bottleneck: a quarter of the bandwidth, eight times the latency, four
  times the bytes, or a backward pass four times as fast (the column `keep cap`).

## What would need measuring

The step time itself, under five caps on the same machines. The course's all-reduce table has one sample mean per size with large deviations, and no gap
curve; contention between kernels and NCCL is not in the data, so the prediction has none (`--compute-slowdown`, `--comm-slowdown` take it). Nothing on
this page was checked against real steps on A100s.
"""

IMAGES = {"sensitivity-cap.svg": "gpt2_large_sensitivity_cap.svg", "latency-bandwidth-keep.svg": "gpt2_large_keep_cap.svg"}
DATA = "data/cmsc828g"
COMMANDS = {
    "import": f"import cmsc828g --model gpt2-large --sizes {DATA}/layer-sizes-gpt2_large-bs4.csv"
    f" --times {DATA}/layer-times-gpt2_large-bs4.csv --allreduce {DATA}/allreduce-times.csv --out gpt2",
    "predict": "predict --tensors gpt2/tensors.csv --allreduce gpt2/allreduce.csv --sensitivity --out gpt2 --svg",
}


def transcript(firkin: pathlib.Path, folder: str, words: str) -> str:
    shown = "$ firkin " + words.replace(" --", " \\\n    --")
    result = subprocess.run([firkin, *shlex.split(words)], cwd=folder, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return f"<!-- not run: tools/gpt2_large_page.py writes this page with what is printed -->\n```console\n{shown}\n{result.stdout.rstrip()}\n```"


def main() -> None:
    firkin, root = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "data").symlink_to(root / "data")
        shown = {name: transcript(firkin, folder, words) for name, words in COMMANDS.items()}
        for image, name in IMAGES.items():
            shutil.copyfile(pathlib.Path(folder) / "gpt2" / image, root / "docs" / "images" / name)
    text = TEXT
    for name, output in shown.items():
        text = text.replace("{" + name + "}", output)
    page = root / "docs" / "gpt2_large_a100.md"
    temporary = page.with_suffix(f".{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(page)


if __name__ == "__main__":
    main()
