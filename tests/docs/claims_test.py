"""Figures of the pages, computed again: from stored results, from the tables of data/, or from what a command prints.

FIRKIN names the binary, FIRKIN_SOURCE_DIR the repository, FIRKIN_PACKAGE the folder with the Python package, if there is one. A claim is a sentence with its figures filled in; it must stand on its page, wherever
lines break. All figures of README.md are here.
"""

import csv
import gzip
import html
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(os.environ["FIRKIN_SOURCE_DIR"])
FIRKIN = os.environ["FIRKIN"]
COURSE = [f"data/cmsc828g/{name}.csv" for name in ("allreduce-times", "layer-sizes-gpt2_large-bs4", "layer-times-gpt2_large-bs4")]
import seed_facts
from folders import InAFolder


def one_line(text: str) -> str:
    return " ".join(text.split())


def firkin(*arguments: str | pathlib.Path) -> str:
    return subprocess.run([FIRKIN, *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def study(name: str) -> dict:
    """A configuration of the validation study, as it is kept."""
    return json.loads(gzip.open(ROOT / f"studies/validation/data/{name}/results.json.gz").read())


def labels_of(svg: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", svg)


def measured_ms(result: dict) -> dict[str, float]:
    """By strategy, or by cap in MiB."""
    rows = [(row["strategy"], row) for row in result["strategies"]] + [(f"{row['cap_mib']:g}", row) for row in result["curve"]]
    return {name: 1e3 * row["measured_s"] for name, row in rows if row.get("measured_s") is not None}


class Claims(InAFolder):
    def claim(self, page: str, *sentences: str):
        text = one_line((ROOT / page).read_text(encoding="utf-8"))
        for sentence in sentences:
            with self.subTest(sentence=sentence):
                self.assertTrue(one_line(sentence) in text, f"{page} does not say: {one_line(sentence)}")

    def test_the_map(self):
        cells = json.loads((ROOT / "studies/worth/results.json").read_text())["cells"]
        gains = [1 - cell["best_s"] / cell["rules_s"]["pytorch"] for cell in cells]
        nothing, some, much = sum(gain < 0.005 for gain in gains), sum(gain >= 0.05 for gain in gains), sum(gain >= 0.2 for gain in gains)
        self.claim("README.md", f"Of {len(cells)} [predicted combinations]",
                   f"{nothing} gain less than 0.5 % from another size, {some} gain 5 % or more, and {much} of these gain 20 % or more")  # fmt: skip
        self.claim("docs/where_it_matters.md", f"Of {len(cells)} cells, {nothing} gain less than 0.5 %", f"{some} gain 5 % or more, and {much} of these gain 20 % or more")

    def test_the_run_that_the_readme_shows(self):
        """Its output is kept, and its lines of Python are those of the example."""
        readme, kept = ((ROOT / name).read_text() for name in ("README.md", "studies/python/watch_then_tune.txt"))
        printed = iter(kept.splitlines())
        for line in re.search(r"```text\n(.*?)```", readme, re.DOTALL)[1].splitlines():
            self.assertTrue(line == "..." or line in printed, line)  # in this order
        self.assertLessEqual(len(readme.splitlines()), 60)  # a screen
        verdicts = [line.split(" | ")[-1] for line in (ROOT / "docs/validation.md").read_text().splitlines() if re.search(r"\| (met|\*\*missed\*\*)", line)]
        self.claim("README.md", f"missed {sum(verdict.count('missed') for verdict in verdicts)} of its {sum(len(re.findall('met|missed', verdict)) for verdict in verdicts)} goals")

        def statements(text):
            return {line.partition("#")[0].strip() for line in text.splitlines()}

        lines = statements(re.search(r"```python\n(.*?)```", readme, re.DOTALL)[1])
        self.assertGreater(len(lines), 5)
        self.assertEqual(lines - statements((ROOT / "examples/python/watch_then_tune.py").read_text()), set())

    def test_how_far_the_readme_says_predictions_were_off(self):
        """Of all caps, small ones too."""
        sys.path.insert(0, str(ROOT / "studies/validation"))
        import figures

        data = ROOT / "studies/validation/data"
        found = {folder.name: figures.read_figures(data, folder.name) for folder in data.iterdir()}
        errors = {name: [abs(error) for _, error in these.large_errors + these.small_errors] for name, these in found.items()}
        linked = [error for name, these in errors.items() if not name.startswith("loopback") for error in these]
        every, cost = [error for these in errors.values() for error in these], max(these.regrets["chosen cap"].value for these in found.values())
        self.claim("README.md", f"In [{len(found)} configurations](docs/validation.md) on one machine",
                   f"off by {100 * statistics.median(every):.1f} % in the median and {100 * max(every):.1f} % at worst",
                   f"(with a limited or modelled link {100 * statistics.median(linked):.1f} % and {100 * max(linked):.1f} %)",
                   f"The chosen size took up to {100 * cost:.1f} % longer than the best one measured")  # fmt: skip

    def test_the_result_that_the_tutorial_shows(self):
        (self.folder / "results.json").write_text(json.dumps(study("1gbit-compute")))
        firkin("report", self.folder)
        text = re.sub(r"<[^>]+>", " ", (self.folder / "report.html").read_text())
        page = one_line(html.unescape(text).replace("\N{NO-BREAK SPACE}", " "))
        tuned = re.search(r"```text\n(Set .*?)```", (ROOT / "docs/tutorial_cpp.md").read_text(), re.DOTALL)[1]
        self.assertIn(one_line(tuned).removesuffix("."), page)

    def test_the_watched_program(self):
        """What its ranks told each other is kept; the package sums it up."""
        if not os.environ.get("FIRKIN_PACKAGE"):
            self.skipTest("the Python package is not in this build")
        code = "import json, sys; from firkin import _core; print(json.loads(_core.watched_summary(sys.stdin.read().splitlines()))['lines'])"
        kept = (ROOT / "studies/python/watched.jsonl").read_text()
        lines = subprocess.run([os.environ["FIRKIN_PYTHON"], "-c", code], input=kept, check=True, stdout=subprocess.PIPE, text=True,
                               env=os.environ | {"PYTHONPATH": os.environ["FIRKIN_PACKAGE"]}).stdout  # fmt: skip
        self.claim("docs/watch.md", f"firkin.watch, {lines}")

    def test_every_figure_of_the_study_is_of_what_is_kept(self):
        """The label of the chosen cap in the picture is that of the data beside it."""
        for folder in sorted((ROOT / "studies/validation/data").iterdir()):
            labels = labels_of((ROOT / f"docs/validation/{folder.name}/curve.svg").read_text())
            with self.subTest(configuration=folder.name):
                self.assertIn(f"chosen: {study(folder.name)['decision']['cap_mib']:.3g} MiB", labels)

    def test_pictures_are_drawn_as_pages_draw_them_today(self):
        """One of each chart, from what is kept: the same labels."""
        python = os.environ.get("FIRKIN_PYTHON", sys.executable)
        if subprocess.run([python, "-c", "import vl_convert"], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no vl-convert-python")
        for kept, chart, picture in (("validation/data/1gbit-compute/results.json.gz", "curve", "validation/1gbit-compute/curve.svg"),
                                     ("gpu/h200/tune-alps.json.gz", "curve", "images/h200_alps.svg"),
                                     ("step/trace.json", "timeline", "images/trace_timeline.svg")):  # fmt: skip
            file, folder = ROOT / "studies" / kept, self.folder / picture
            with self.subTest(picture=picture):
                folder.mkdir(parents=True)
                (folder / "results.json").write_bytes((gzip.open if file.suffix == ".gz" else open)(file, "rb").read())
                firkin("report", folder)
                rendered = [python, ROOT / "tools/render_charts.py", folder / "report.html", "svg", folder]
                subprocess.run(rendered, check=True, stdout=subprocess.DEVNULL)
                self.assertEqual(labels_of((ROOT / "docs" / picture).read_text()), labels_of((folder / f"{chart}.svg").read_text()))

    def test_what_was_seen_on_a_gpu(self):
        """The table of predicted and measured steps, and what the parts of the drill said."""
        def kept(name):
            return json.loads(gzip.open(ROOT / f"studies/gpu/h200/{name}.json.gz").read())

        inside, too_long, widths, hooks = [], [], [], []
        for name, compared, result in (("8 GPUs over NVLink", kept("tune-nvlink"), kept("tune-nvlink")),
                                       ("128 GPUs of Alps", kept("tune-alps"), kept("tune-alps")),
                                       ("8 ranks at 100 Gbit/s, 30 us", kept("compare-tcp"), kept("tune-tcp"))):  # fmt: skip
            errors, times = [100 * abs(row["error"]) for row in compared["curve"]], measured_ms(result)
            decision, gain = result["decision"], result["decision"]["over_default"]
            row = f"| {name} | {statistics.median(errors):.1f} %, {max(errors):.1f} %"
            figures = f"| {times['torch default']:.1f} ms | {decision['cap_mib']:.3g} MiB, {1e3 * decision['measured_s']:.1f} ms |"
            interval = f"({100 * (1 - gain['ratio_ci']['high']):.1f} to {100 * (1 - gain['ratio_ci']['low']):.1f} %)"
            shown = f"{100 * (1 - gain['ratio']):.1f} %" if decision["outcome"] == "gain" else "none"
            self.claim("docs/gpu.md", row, f"{figures} {shown} {interval} |")
            for point in compared["curve"]:
                inside.append(point["predicted_range_s"]["low"] <= point["measured_s"] <= point["predicted_range_s"]["high"])
            too_long += [row["error"] > 0 for row in compared["curve"] if "Gbit/s" not in name]
            widths += [100 * (point["predicted_range_s"][end] / point["predicted_s"] - 1) for point in compared["curve"][:1] for end in ("low", "high")]
            hooks.append(100 * result["profile"]["hook_perturbation"])
        self.assertEqual(inside, [True] * 30)
        self.claim("docs/gpu.md", f"{sum(too_long)} of {len(too_long)} predictions were too long", f"made backward {min(hooks[:2]):.1f} to {max(hooks[:2]):.1f} % longer there",
                   f"over NVLink ({-widths[0]:.0f} % below to {widths[1]:.0f} % above", f"Alps ({-widths[2]:.0f} % below to {widths[3]:.0f} % above",
                   f"come from {len(kept('compare-tcp')['samples']['step_s'][0])} of {kept('compare-tcp')['settings']['blocks']} blocks")  # fmt: skip
        tcp, engine, stock = kept("tune-tcp"), kept("engine")["configurations"][0]["strategies"], kept("stock-ddp")
        by_name = {row["strategy"]: row for row in tcp["strategies"]}
        for name in ("ordered", "sharded"):
            self.claim("docs/gpu.md", f"took {1e3 * by_name[name]['measured_s']:.1f} ms, {tcp[f'{name}_over_best_cap']['ratio']:.3f} of the chosen cap")
            self.claim("docs/gpu.md", f"{1e3 * by_name[name]['predicted_s']:.1f}")
            self.assertGreater(by_name[name]["measured_s"], 1.25 * tcp["sharded"]["bound_s"])
        self.claim("docs/gpu.md", f"miss the bound of `sharded`, {1e3 * tcp['sharded']['bound_s']:.1f} ms, by over 25 %", f"Over NVLink `ordered` took {kept('tune-nvlink')['ordered_over_best_cap']['ratio']:.3f}",
                   f"over Alps {kept('tune-alps')['ordered_over_best_cap']['ratio']:.3f}")  # fmt: skip
        ours = next(row for row in engine if row["strategy"] == "bucketed")
        interval = ours["ratio_to_torch_ci"]
        self.claim("docs/gpu.md", f"{ours['ratio_to_torch']:.3f} of the step of c10d::Reducer ({interval['low']:.3f} to {interval['high']:.3f})",
                   f"off by {100 * stock['median_error']:.1f} % in the median",
                   f"one of {len(stock['rows'])} was {-100 * min(row['error'] for row in stock['rows']):.0f} % too short, and a choice lost {100 * stock['regret']:.1f} %")  # fmt: skip

    def test_steps_of_cs336(self):
        free, link = measured_ms(study("loopback-compute")), measured_ms(study("1gbit-compute"))
        self.claim("docs/experiments.md", f"`none` | {free['none']:.0f} | {link['none']:.0f} |",
                   *(f"| {free[name]:.0f}, +{free[name] - free['none']:.0f} | {link[name]:.0f}, +{link[name] - link['none']:.0f} |"
                     for name in ("naive", "flat", "overlap", "1", "4", "32")))  # fmt: skip
        self.assertEqual(min(link, key=lambda name: link[name] if name in ("naive", "flat", "overlap", "1", "4", "32") else math.inf), "1")
        self.assertLess(free["flat"], min(free["1"], free["overlap"]))

    def test_naive_beside_overlap(self):
        result = json.loads((ROOT / "studies/step/trace.json").read_text())
        naive, overlap = (next(trace["ranks"][0] for trace in result["traces"] if trace["strategy"] == name) for name in ("naive", "overlap"))
        self.assertEqual(naive["overlapped_s"], 0)
        hidden = [under / all_of_it for under, all_of_it in zip(overlap["samples"]["overlapped_s"], overlap["samples"]["communication_s"])]
        self.claim("docs/experiments.md", f"A model of {result['model']['tensors']} tensors",
                   f"{100 * min(hidden):.0f} to {100 * max(hidden):.0f} % of it lies below computation",
                   f"a step takes {1e3 * overlap['step_s']:.0f} ms instead of {1e3 * naive['step_s']:.0f}")  # fmt: skip

    def test_buckets_of_cs336s_models(self):
        xl, medium, large = (json.loads(firkin("buckets", "--model", model, "--cap", "1MiB,10MiB,100MiB,1000MiB", "--rule", "at-most", "--json"))
                             for model in ("xl", "medium", "large"))  # fmt: skip
        one, ten, hundred, thousand = (row["buckets"] for row in xl["caps"])
        size = xl["gradient_bytes"]
        self.claim("docs/experiments.md", f"**xl has {size / 1e9:.2f} GB of gradients, not 1.7** (TianqGuo): {size // 4:,} parameters",
                   f"in {xl['tensors']} tensors", f"each travels alone ({one})", f"join a neighbour ({ten}); 100 MiB makes {hundred}, 1000 MiB {thousand}.",
                   f"`medium` makes {medium['caps'][1]['buckets']} and {medium['caps'][2]['buckets']} buckets and `large` "
                   f"{large['caps'][1]['buckets']} and {large['caps'][2]['buckets']}",
                   f"{hundred} is {hundred / (size / (100 * 2**20)):.1f} times size over cap, not 6 times",
                   f"between two ranks at 450 GB/s takes at least {1e3 * size / 450e9:.1f} ms")  # fmt: skip
        self.assertEqual(sum(seed_facts.XL_BYTES), size)

    def test_effects_in_one_run(self):
        rows = seed_facts.rows_of(ROOT / "data/gpu_sweeps/steps.csv")
        runs = seed_facts.runs_of(rows, "damek")
        cells = [(batch, sequence) for batch, sequence, setting in runs if setting == "bucketed 1"]

        def apart(a, b, where=cells):
            gaps = [runs[(*cell, a)][-1] - runs[(*cell, b)][-1] for cell in where]
            return min(gaps), max(gaps)

        reruns = max(max(times) - min(times) for times in runs.values())
        slower, effect = apart("bucketed 1", "overlap"), apart("bucketed 1", "bucketed 100")
        long = apart("bucketed 1000", "bucketed 100", [cell for cell in cells if cell[1] == "512"])
        gains = {cell: apart("bucketed 1000", "bucketed 100", [cell])[0] for cell in cells}
        self.assertEqual({sequence for (_, sequence), gain in gains.items() if gain > reruns}, {"512"})
        others = {setting: times for (_, _, setting), times in seed_facts.runs_of(rows, "TianqGuo").items() if setting.startswith("bucketed")}
        caps = [times[-1] for times in others.values()]
        spread = [max(times) - min(times) for times in others.values()]
        ranks = [sorted(others, key=lambda setting: others[setting][run]).index("bucketed 10") for run in range(3)]
        self.assertEqual(sorted(ranks), [0, 3, 3])  # 10 MiB: the fastest of one run, the slowest of two
        self.claim("docs/experiments.md", f"repeat within {reruns:.1f} ms", f"costs {effect[0]:.1f} to {effect[1]:.1f} ms over 100 in all {['', '', '', '', '', '', 'six'][len(cells)]} cells",
                   f"and {slower[0]:.1f} to {slower[1]:.1f} ms over the later run of `overlap`", f"Of 100 over 1000 MiB a gain of more than {reruns:.1f} ms is in the two cells with sequences of 512 alone ({long[0]:.1f} and {long[1]:.1f} ms)",
                   f"lie {min(spread):.0f} to {max(spread):.0f} ms apart", f'"2-3%" is {100 * (max(caps) / min(caps) - 1):.1f} %')  # fmt: skip

    def test_what_overlap_saves(self):
        said = subprocess.run([sys.executable, seed_facts.__file__, ROOT / "data"], check=True, capture_output=True, text=True).stdout
        table = said[said.index("Naive (damek)") :].split("\n\n")[0]
        title, _, *rows = (re.findall(r"[\d.]+", line) for line in table.splitlines())
        alone_ms = title[1]
        timer, step = ([float(row[column]) for row in rows] for column in (-2, -1))
        first = next(row for row in seed_facts.rows_of(ROOT / "data/seed_step_times.csv") if row["strategy"] == "naive")
        self.assertEqual(len(rows), 5)
        self.claim("docs/experiments.md", f"435 of them take {alone_ms} ms of {rows[0][2]}, and the timer says {1e3 * float(first['comm_s']):.0f}",
                   f'the timer "saves" {min(timer):.0f} to {max(timer):.0f} ms where the step saves {min(step):.0f} to {max(step):.0f}')  # fmt: skip

    def predicted_of_the_course(self, *flags: str) -> dict:
        firkin("import", "--out", self.folder, *COURSE)
        files = ["--tensors", self.folder / "tensors.csv", "--allreduce", self.folder / "allreduce.csv"]
        return json.loads(firkin("predict", *files, "--json", *flags))

    def test_the_closed_form(self):
        result = self.predicted_of_the_course()
        o, per_byte = result["alpha_beta"]["alpha_s"], result["alpha_beta"]["beta_s_per_byte"]
        s, backward = result["model"]["gradient_bytes"], result["model"]["backward_s"]
        b = math.sqrt(s * o / per_byte)
        self.claim("docs/experiments.md", f"sqrt(s o w) = {b / 2**20:.0f} MiB", f"backward takes {1e3 * backward:.0f} ms here and all bytes {1e3 * s * per_byte:.0f} ms",
                   f"{b / 2**20:.0f} MiB in {s / b:.1f} buckets with {2e3 * math.sqrt(s * o * per_byte):.1f} ms left")  # fmt: skip

    def test_how_the_courses_cap_moves(self):
        """From the factor that the page names, and beyond it, keeping the cap costs over 1 %; with all other factors it does not."""
        result = self.predicted_of_the_course("--sensitivity")
        costs = {}
        for point in result["sensitivity"]["points"]:
            costs.setdefault(point["influence"], {})[point["factor"]] = point["kept_backward_s"] / point["backward_s"] - 1
        named = {"total bytes": 2, "latency": 4, "bandwidth": 0.25, "backward time": 0.25}
        for influence, from_factor in named.items():
            beyond = {factor for factor in costs[influence] if (factor >= from_factor if from_factor > 1 else factor <= from_factor)}
            self.assertEqual({factor for factor, cost in costs[influence].items() if cost > 0.01}, beyond, influence)
        as_stated = next(point for point in result["sensitivity"]["points"] if point["factor"] == 1)
        self.claim("docs/experiments.md", f"Keeping the {as_stated['cap_mib']:.2f} MiB that are best as stated costs over 1 % (`keep cap`)",
                   "only with twice the bytes, four times the latency, a quarter of the bandwidth, or backward four times as fast, and beyond")  # fmt: skip

    def test_why_predict_names_a_larger_cap_than_the_course(self):
        tensors, allreduce = self.folder / "tensors.csv", self.folder / "allreduce.csv"
        text = firkin("import", "--out", self.folder, *COURSE) and firkin("predict", "--tensors", tensors, "--allreduce", allreduce)
        first = re.search(r"```text\n(Keep .*?)```", (ROOT / "docs/experiments.md").read_text(), re.DOTALL)[1]
        self.assertTrue(text.startswith(first), text)
        caps = ("--cap", "25MiB,50MiB,200.17MiB")
        stated, busy = ([(round(1e3 * row["backward_s"]), row["buckets"]) for row in self.predicted_of_the_course(*caps, *flags)["curve"]]
                        for flags in ((), ("--overhead", "1ms")))  # fmt: skip
        self.claim("docs/experiments.md", f"is no better: {stated[2][0]} ms, where 25 MiB takes {stated[0][0]}.",
                   f"25 MiB ({busy[0][1]} buckets) take {busy[0][0]} ms, 50 MiB ({busy[1][1]}) {busy[1][0]} and 200.17 MiB ({busy[2][1]}) {busy[2][0]}.")  # fmt: skip

    def test_what_the_notebook_says(self):
        notebook = json.loads((ROOT / "examples/cmsc828g/assignment2.ipynb").read_text())
        text = "".join("".join(output.get("text", [])) for cell in notebook["cells"] for output in cell.get("outputs", []))
        runs = re.search(r"within 1 % of the least: (.*) MiB", text)[1].split(", ")
        low, high = runs[0].split(" to ")
        beyond = dict(re.findall(r"(\d+) MiB: ([\d.]+) %", text))
        least_at, least_ms = re.search(r"T is least at ([\d.]+) MiB: ([\d.]+) ms", text).groups()
        caps = (low, high, least_at, "6", "78")
        curve = self.predicted_of_the_course("--cap", ",".join(f"{mib}MiB" for mib in caps))["curve"]
        time_s = {mib: next(row["backward_s"] for row in curve if abs(row["cap_mib"] - float(mib)) < 1e-6) for mib in caps}
        for mib in caps:
            self.assertEqual(time_s[mib] <= 1.01 * time_s[least_at], mib not in beyond, mib)
        truth = float(re.search(r"best measured: ([\d.]+) MiB", text)[1])
        (_, own_error, own_best, own_cost), (_, error, predicted, _) = re.findall(r"(part 1's model|firkin tune): .*worst ([\d.]+) %; best ([\d.]+) MiB, which costs ([\d.]+) %", text)
        best, best_ms = re.search(r"b\* = ([\d.]+ to [\d.]+) MiB, of stretches wider than 1 MiB: ([\d.]+) ms", text).groups()
        with open(ROOT / COURSE[0], newline="") as file:
            scatter = [100 * float(row["stdev_time"]) / float(row["average_time"]) for row in csv.DictReader(file)]
        self.claim("docs/experiments.md", f"{best} MiB, T(b\\*) = {float(best_ms):.0f} ms", f"({float(least_ms):.0f} ms, at {least_at} MiB)",
                   f"standard deviations of {min(scatter):.0f} to {max(scatter):.0f} %", f"size from {low} to {high} MiB lies within 1 % of the least predicted time", f"6 MiB takes {beyond['6']} % longer and 78 MiB {beyond['78']} %", f"largest ({float(error):.0f} %) below 1 MiB", f"its best cap ({float(predicted):g} MiB) from the best measured one ({truth:g} MiB)",
                   f"up to {own_error} % off below 1 MiB, with a best size of {float(own_best):g} MiB that costs {own_cost} % over the best measured")

    def test_the_tutorials_table(self):
        result = study("1gbit-communication")
        step = measured_ms(result)
        chosen = f"{result['decision']['cap_mib']:g}"
        rows = {row["strategy"]: row for row in result["strategies"]} | {f"{row['cap_mib']:g}": row for row in result["curve"]}
        exposed = {name: 1e3 * row.get("exposed_s", row["measured_s"] - rows["none"]["measured_s"]) for name, row in rows.items() if "measured_s" in row}
        self.claim("docs/tutorial.md", f"no communication | {step['none']:.1f} ms | 0 ms |", f"the cap Firkin chose, {chosen} MiB",
                   *(f"{rows[name]['buckets']} buckets | {step[name]:.1f} ms | {exposed[name]:.1f} ms |" for name in ("torch default", chosen, "ordered")))
        self.assertEqual(result["decision"]["cap_mib"], result["best_measured"]["cap_mib"])

    def test_the_validation_page_is_that_of_the_kept_results(self):
        command = [sys.executable, ROOT / "studies/validation/study.py", "--page", "--docs", self.folder]
        subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
        self.assertEqual((self.folder / "validation.md").read_text(), (ROOT / "docs/validation.md").read_text())

    def test_what_the_map_says_of_ordered(self):
        median, worst = re.search(r"predicted step of `ordered`: median, worst \|.*?\| ([\d.]+ %); ([\d.]+ %) \|", (ROOT / "docs/validation.md").read_text()).groups()
        self.claim("docs/where_it_matters.md", f"by {median} in the median and {worst} at worst")

    def test_the_newest_study_beside_the_earlier_ones(self):
        sys.path.insert(0, str(ROOT / "studies/validation"))
        import figures

        found = [figures.read_figures(ROOT / "studies/validation/data", folder.name) for folder in (ROOT / "studies/validation/data").iterdir()]
        regrets = [max(0.0, these.regrets["chosen cap"].value) for these in found]
        covered = [held for these in found for held in these.covered]
        self.claim("docs/performance_model.md", f"mean {100 * sum(regrets) / len(regrets):.2f} %, worst {100 * max(regrets):.1f} %",
                   f"newest study {100 * sum(covered) / len(covered):.0f} %")  # fmt: skip

    def test_the_page_of_the_map_is_that_of_the_kept_results(self):
        sys.path.insert(0, str(ROOT / "studies/worth"))
        import page

        self.assertEqual(page.text(json.loads((ROOT / "studies/worth/results.json").read_text())), (ROOT / "docs/where_it_matters.md").read_text())

    def test_versions(self):
        """What is needed, as the build files say it."""
        def found(pattern, file):
            return re.search(pattern, (ROOT / file).read_text())[1]

        python = found(r'requires-python = ">=([\d.]+)"', "pyproject.toml")
        cmake = found(r"cmake_minimum_required\(VERSION ([\d.]+)\)", "CMakeLists.txt")
        oldest = found(r"a PyTorch \(([\d.]+) or later\)", "pyproject.toml")
        json_library = found(r"firkin_find\(nlohmann_json ([\d.]+)", "cmake/Dependencies.cmake")
        series = found(r"set\(FIRKIN_TORCH_VERSIONS ([\d. ]+)\)", "cmake/LibTorch.cmake").split()
        self.assertEqual(found(r'cmake.version = ">=([\d.]+)"', "pyproject.toml"), cmake)
        self.claim("README.md", f"your own PyTorch, {oldest} or later")
        self.claim("python/README.md", f"Needs Linux, Python {python} or later, and your own PyTorch, {oldest} or later", f"PyTorch ({series[0]} to {series[-1]})")
        self.claim("docs/install.md", f"Firkin needs Linux, Python {python}, g++ 12, CMake {cmake}", f"nlohmann-json {json_library} and", f"This needs Linux, Python {python} and torch {oldest} or later",
                   f"To use your own, torch {series[0]} to {series[-1]}:", f"With torch {series[0]} to {series[-1]} in your environment")  # fmt: skip

    def test_every_reader_of_files_is_fuzzed(self):
        """SECURITY.md says so. What base/ has are parts of these readers."""
        self.claim("SECURITY.md", "Their readers are fuzzed")
        fuzzed = (ROOT / "tests/fuzz/readers.cpp").read_text()
        headers = [header for folder in ("include/firkin", "src") for header in (ROOT / folder).rglob("*.h") if header.parent.name != "base"]
        readers = {name for header in headers
                   for name in re.findall(r"\b(parse_\w+)\(std::string_view \w*text, const std::string& \w*file\b", header.read_text())}  # fmt: skip
        self.assertIn("parse_results", readers)
        self.assertEqual({name for name in readers if f"{name}(" not in fuzzed}, set())

    def test_every_public_report_has_its_test(self):
        tests = {file.name: file.read_text().replace("_", " ") for file in (ROOT / "tests").rglob("*_test.*") if file.suffix != ".pyc"}
        logs, _, programs = (ROOT / "docs/public_reports.md").read_text().partition("## Training programs")
        for section, usual_file in ((logs, "benchmark_logs_test.cpp"), (programs, "reports_test.py")):
            for cell in re.findall(r"^\| \[.* \| (.+) \|$", section, re.MULTILINE):
                file, names = re.fullmatch(r"(?:`(\w+\.\w+)`: )?(.+)", cell).groups()
                for name in re.split(r", (?:\.\.\. )?", names):
                    with self.subTest(name=name):
                        self.assertIn(name.strip("`").replace("_", " "), tests[file or usual_file])

    def test_every_file_of_data_has_its_terms(self):
        readme, licences = ((ROOT / "data" / name).read_text() for name in ("README.md", "LICENSES"))
        files = [file.relative_to(ROOT / "data") for file in (ROOT / "data").rglob("*") if file.is_file() and file.name not in ("README.md", "LICENSES")]
        self.assertIn(pathlib.Path("seed_step_times.csv"), files)
        for file in files:
            named = {str(file), *(f"{folder}/" for folder in file.parents)}
            with self.subTest(file=file):
                self.assertTrue(any(name in licences for name in named), "data/LICENSES")
                self.assertTrue(any(name in readme for name in named), "data/README.md")
