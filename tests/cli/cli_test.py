"""The program as a user meets it: exit codes, messages, output on the right stream, and what is left behind."""

import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest
from processes import children_of, ends, is_running, wait_until
from program import DEADLINE_S, FIRKIN, TINY_MODEL, InFolder, firkin

# As few measurements as the statistics allow.
TINY_RUN = ["--blocks", "4", "--profile-steps", "4", "--allreduce-time", "0.2s"]


class Start(InFolder):
    def test_libtorch_is_loaded_only_to_measure(self):
        loads = {}
        for words in ([], ["--version"], ["frobnicate"], ["tune", "--help"], ["bench", "step", "--help-all"], ["trace", "--steps", "0"],
                      ["tune", "--ranks", "0"], ["buckets"], ["predict", "--tensors", "none.csv", "--allreduce", "none.csv"],
                      ["import", "none.csv"], ["report", "none.json"], ["tune", "--data", "none.txt"]):  # fmt: skip
            result = firkin(*words, env=os.environ | {"LD_DEBUG": "files"})
            loads[" ".join(words)] = "libtorch_cpu.so" in result.stderr
        self.assertEqual({words for words, loaded in loads.items() if loaded}, {"tune --data none.txt"})

    def test_alone_it_says_what_is_missing(self):
        alone = shutil.copy(FIRKIN, self.folder)
        for measuring in (None, alone):  # none, then itself under that name, which it must not start for ever
            if measuring:
                shutil.copy(measuring, self.folder / "firkin-measure")
            result = subprocess.run([alone, "tune", "--ranks", "2"], capture_output=True, text=True, timeout=DEADLINE_S)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("firkin-measure", result.stderr)
            self.assertIn("-m firkin.tune my_script.py:build", result.stderr)  # what the Python package has instead

    def test_a_reader_that_has_gone_ends_it_without_a_word(self):
        for words in (["buckets", "--list", "--model", "xl"], ["bench", "allreduce", "--ranks", "2", "-e", "64", "--time", "100ms", "--out", self.out, "--quiet"]):
            reader, writer = os.pipe()
            os.close(reader)
            with os.fdopen(writer, "w") as gone:
                result = subprocess.run([FIRKIN, *map(str, words)], stdout=gone, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
            # By the signal, or, where Gloo has it ignored, with the code that a shell gives it.
            self.assertIn((result.returncode, result.stderr), ((-signal.SIGPIPE, ""), (128 + signal.SIGPIPE, "")), words)
        self.assertTrue((self.out / "results.json").exists())

    def test_an_output_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            for words in (["--help"], ["--version"], ["buckets", "--list"]):
                result = subprocess.run([FIRKIN, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S)
                self.assertEqual((result.returncode, result.stderr), (1, "firkin: standard output cannot be written\n"), words)
            self.assertEqual(subprocess.run([FIRKIN, "frobnicate"], stderr=full, timeout=DEADLINE_S).returncode, 2)


class Usage(InFolder):
    def test_bad_flags_and_values_exit_2_with_one_line(self):
        on_a_cluster = ["predict", "--model", "gpt2-xl", "--cluster", "aws-p4de-16"]
        for words, mentions in [
            (["frobnicate"], "frobnicate"),
            (["bench", "frobnicate"], "unknown experiment 'frobnicate'; expected one of step, allreduce"),
            (["tune", "--frobnicate"], "--frobnicate: no flag of firkin tune (see firkin tune --help-all)"),
            (["tune", "--rank", "2"], "--rank: no flag of firkin tune; did you mean --ranks?"),
            (["bench", "step", "--warm-up=2"], "--warm-up: no flag of firkin bench step; did you mean --warmup?"),
            (["predict", "--ranks", "8"], "--ranks: no flag of firkin predict; did you mean --world?"),
            (["buckets", "--bucket-cap-mb=25"], "--bucket-cap-mb: no flag of firkin buckets; did you mean --cap?"),
            (["buckets", "--ranks", "8"], "--ranks: no flag of firkin buckets (see"),
            (["--ranks", "2", "tune"], "--ranks: expected behind 'firkin tune'"),
            (["tune", "extra"], "'extra': firkin tune takes no such word (see firkin tune --help-all)"),
            (["predict", "--model", "gpt2", "--batch", "2", "4"], "'4': firkin predict takes no such word; expected commas in a list, as in 2,4"),
            (["bench", "chunks", "--elements", "x"], "(see firkin bench chunks --help)"),
            (["bench", "--json"], "firkin: bench: expected one of step, allreduce"),
            (["tune", "--ranks", "0"], "--ranks: 0: expected a whole number from"),
            (["tune", "--threads", "2.5"], "--threads: 2.5: expected a whole number from 0 to 1024"),
            (["tune", "--world", "many"], "--world: many: expected a number"),
            (["predict", "--world", "eight"], "--world: eight: expected a whole number from 2 to 65536"),
            (["tune", "--model", "huge"], "unknown model 'huge'"),
            (["tune", "--model", "missing.json"], "missing.json"),
            (["tune", "--data", "missing.txt"], "missing.txt: cannot be read"),
            (["tune", "--data", "."], "it is a folder"),
            (["tune", "--cap", "1MiB,infMiB"], "--cap infMiB: expected a size with its unit"),
            (["buckets", "--first-cap", "1mb"], "--first-cap 1mb: expected a size with its unit, such as"),
            (["tune", "--rule", "random"], "{at-most,close-when-full}"),
            (["tune", "--sequence", "0"], "--sequence: 0: expected a whole number from"),
            (["tune", "--sequence", "4096"], "context_length 1024"),
            (["tune", "--num-heads", "7"], "heads"),
            (["tune", "--vocab-size", "100"], "--vocab-size 100"),
            (["tune", "--time", "90"], "--time 90: expected a time with its unit, such as"),
            (["tune", "--allreduce-time", "0s"], "--allreduce-time: 0s: expected 100ms"),
            (["tune", "--backend", "pigeon"], "--backend: pigeon not in {auto,gloo,nccl}"),
            (["buckets", "--model", "huge"], "expected demo, small"),
            (["buckets", "--memory", "--list"], "--list excludes --memory"),
            (["buckets", "--memory", "--cap", "1MiB"], "--cap excludes --memory"),
            (["buckets", "--tensors", "tensors.csv", "--model", "xl"], "--model excludes --tensors"),
            (["buckets", "--tensors", "tensors.csv", "--dtype", "bf16"], "--dtype: expected --memory beside --tensors"),
            (["report", "missing\n.json"], "missing?.json: cannot be read"),
            (["tune", "--threads", "99999999"], "--threads: 99999999: expected a whole number from"),
            ([*on_a_cluster, "--residual", "nan"], "--residual: nan: expected a number from 0 to 1"),
            ([*on_a_cluster, "--where", "x=y"], "--where"),
        ]:
            self.assert_refused(*words, mentions=mentions)

    def test_what_needs_a_gpu_is_refused_without_one(self):
        for words, mentions in (("tune", "--device", "cuda"), "expected cpu"), (("bench", "allreduce", "--backend", "nccl"), "backend nccl: "):
            self.assert_refused(*words, "--out", self.out, mentions=mentions, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
            self.assertFalse(self.out.exists())

    def test_help_shows_few_flags_and_names_the_others(self):
        short, full = firkin("tune", "--help").stdout, firkin("tune", "--help-all").stdout
        explained = [line.split()[0] for line in short.splitlines() if line.startswith("  -")]
        self.assertLessEqual(len(explained), 11, explained)  # eight, --help, --help-all, --quiet
        self.assertIn("--blocks", short)
        for flag in ["--blocks", "--d-model", "--timeout", "--rule"]:
            self.assertIn(f"\n  {flag}", full)

    def test_help_of_everything_fits_into_80_columns(self):
        experiments = [["bench", name] for name in ("step", "allreduce", "chunks", "collectives", "pairs", "layers")]
        commands = [[name] for name in ("tune", "bench", "trace", "buckets", "predict", "import", "report")]
        for words in [["--help"], ["--help-all"], *([*command, how] for command in commands + experiments for how in ("--help", "--help-all"))]:
            result = firkin(*words)
            self.assertEqual(result.returncode, 0, words)
            self.assertIn("--", result.stdout, words)
            for line in result.stdout.splitlines():
                self.assertLessEqual(len(line), 80, (words, line))
        self.assertEqual(firkin().stdout, firkin("--help").stdout)
        self.assertEqual(firkin("bench").stdout, firkin("bench", "--help").stdout)  # which lists the experiments

    def test_flags_are_taken_also_from_a_file(self):
        typed = firkin("buckets", "--model", "demo", "--cap", "1MiB,4MiB", "--first-cap", "0.5MiB", "--json")
        self.assertEqual(len(json.loads(typed.stdout)["caps"]), 2)
        file = self.folder / "flags.toml"
        file.write_text('[buckets]\nmodel = "demo"\ncap = ["1MiB", "4MiB"]\nfirst-cap = "512KiB"\njson = true\n')
        self.assertEqual(firkin("--config", file, "buckets").stdout, typed.stdout)
        alone = shutil.copy(FIRKIN, self.folder)  # which knows the flags of tune, though it cannot run it
        file.write_text(file.read_text() + "[tune]\nbatch = 2\n[bench.step]\nbatch = [2, 4]\n")
        result = subprocess.run([alone, "--config", file, "buckets"], capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual((result.stdout, result.stderr), (typed.stdout, ""))

    def test_what_is_wrong_in_a_file_of_flags_names_the_file(self):
        file = self.folder / "flags.toml"
        for text, mentions in [
            ("[buckets]\nfrob = 1\n", "'buckets.frob' is no flag; expected"),
            ("[frob]\nmodel = 1\n", "'frob' is no flag; expected"),
            ("[buckets]\ncap = 4\n", "--cap 4: expected a size with its unit"),
            ("[buckets]\nrule = 4\n", "--rule: 4 not in {at-most,close-when-full}"),
        ]:
            file.write_text(text)
            self.assert_refused("--config", file, "buckets", mentions=f"--config {file}: {mentions}")
        self.assert_refused("--config", file, "buckets", "--rule", "5", mentions="firkin: --rule: 5 not in")


class Buckets(InFolder):
    def test_caps_below_a_kib_are_in_bytes(self):
        for words in (["buckets", "--model", "demo", "--list"], ["predict", "--model", "demo", "--gpu", "a100", "--cluster", "aws-p4de-16"]):
            said = self.assert_succeeds(*words, "--cap", "32B,1KiB").stdout
            self.assertRegex(said, r"(?m)^ *32 B +57")
            self.assertNotRegex(said, r"\de-0")

    def test_memory_of_a_model_and_of_a_file(self):
        model = json.loads(firkin("buckets", "--model", "gpt2-large", "--memory", "--json").stdout)
        self.assertEqual(model["plain"]["total_bytes"], 16 * 774_030_080)  # parameters, gradients, two moments
        self.assertEqual(model["sharded"][3]["optimizer_bytes"], 774_030_080)  # on 8 ranks
        bf16 = firkin("buckets", "--model", "gpt2-large", "--memory", "--dtype", "bf16").stdout.splitlines()
        self.assertTrue(bf16[0].startswith("gpt2-large, bf16, AdamW: memory of a rank"), bf16[0])
        file = self.folder / "tensors.csv"
        file.write_text("name,bytes,ready_s\na,400,0.1\n")
        rows = json.loads(firkin("buckets", "--tensors", file, "--memory", "--json").stdout)
        halves = json.loads(firkin("buckets", "--tensors", file, "--memory", "--dtype", "bf16", "--json").stdout)
        self.assertEqual((rows["parameters"], rows["plain"]["total_bytes"]), (100, 1600))
        self.assertEqual((halves["parameters"], halves["plain"]["total_bytes"]), (200, 400 + 400 + 3 * 800))

    def test_a_tensors_file_is_taken_in_its_own_order(self):
        file = self.folder / "tensors.csv"
        file.write_text("name,bytes,ready_s\nb,1048576,0.1\na,1048576,0.2\nc,1048576,0.3\n")
        answer = json.loads(firkin("buckets", "--tensors", file, "--cap", "2MiB", "--list", "--json").stdout)
        self.assertEqual([b["tensors"] for b in answer["caps"][0]["assignment"]], [["b", "a"], ["c"]])


class Tuning(InFolder):
    def start(self, *words, out=None):
        command = [FIRKIN, "tune", "--ranks", "2", "--out", str(out or self.out), *TINY_MODEL, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ended(self, process):
        """What it wrote, once it has succeeded."""
        stdout, stderr = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 0, stderr)
        return stdout, stderr


class Tune(Tuning):
    def test_json_is_one_object_on_stdout_and_the_same_in_results_json(self):
        stdout, stderr = self.ended(self.start(*TINY_RUN, "--json", "--seed", "7"))
        answer = json.loads(stdout)
        self.assertGreaterEqual(len(answer["curve"]), 2)
        for point in answer["curve"]:
            self.assertLessEqual({"cap_mib", "buckets", "predicted_s", "measured_s", "measured_ci_s"}, point.keys())
        strategies = [s["strategy"] for s in answer["strategies"]]
        self.assertEqual(strategies, ["none", "torch default", "ordered", "chosen cap"])
        self.assertGreater(answer["decision"]["over_default"]["ratio"], 0)
        self.assertIn(answer["decision"]["cap_mib"], answer["decision"]["tied_mib"])
        self.assertEqual(answer["samples"]["settings"], strategies)
        self.assertEqual(len(answer["samples"]["race_step_s"]), len(answer["curve"]))
        environment = answer["environment"]
        self.assertEqual((environment["device"], environment["backend"], environment["hosts"][0]["ranks"]), ("cpu", "gloo", [0, 1]))
        self.assertEqual((answer["settings"]["blocks"], answer["seed"]), ("4", 7))
        self.assertIn(answer["best_measured"]["cap_mib"], answer["indifference_set"])
        self.assertIn("measuring the gain", stderr)
        self.assertEqual(self.results(), answer)
        written = ["allreduce.csv", "report.html", "results.json", "tensors.csv"]
        self.assertEqual(sorted(f.name for f in self.out.iterdir() if not f.name.startswith(".")), written)
        self.assertEqual(sorted(answer["files"]), written)
        self.assert_read_whole("curve", "allreduce")

    def test_everything_that_can_be_asked_for_in_text_fits_into_80_columns(self):
        stdout, stderr = self.ended(self.start(*TINY_RUN, "--compare", "--sharded", "--quiet"))
        self.assertNotIn("measuring", stderr)
        self.assertIn("\n  paste   DistributedDataParallel(model", stdout)
        self.assertEqual(stdout.splitlines()[-1], f"open  {self.out}/report.html")
        page = (self.out / "report.html").read_text()
        settings = ["reduce_bucket_size", "--ddp-bucket-size", "HOROVOD_FUSION_THRESHOLD="]
        if "Keep PyTorch's default" not in stdout:
            settings += ["bucket_cap_mb=", "ddp_bucket_cap_mb="]
        for setting in [*settings, "With AdamW a rank then keeps"]:
            self.assertIn(setting, page)
        self.assertNotIn("half an all-reduce", page)  # reduce-scatters and all-gathers were measured
        self.assertRegex(page, "own engine is (ordered|sharded)")  # the faster of the two
        for line in stdout.splitlines():
            self.assertTrue(len(line) <= 80 or "bucket_cap_mb_list" in line or str(self.out) in line, line)
        answer = self.results()
        self.assertEqual({row["strategy"] for row in answer["strategies"]},
                         {"none", "naive", "flat", "overlap", "torch default", "ordered", "sharded"})  # fmt: skip
        self.assertGreater(answer["sharded_over_best_cap"]["ratio"], 0)
        self.assertGreater(answer["sharded"]["period_s"], 0)

    def test_what_the_memory_cannot_hold_is_refused_before_any_rank_starts(self):
        self.assert_refused("tune", "--ranks", "2", "--model", "xl", "--memory-limit", "8GiB", "--out", self.out, mentions="GiB")
        self.assertFalse(self.out.exists())

    def test_no_rank_outlives_a_killed_rank_or_launcher(self):
        for victim in ("launcher", 1):
            with self.subTest(victim=victim):
                process = self.start("--blocks", "100000")
                ranks = wait_for_ranks(process.pid, 2)
                os.kill(process.pid if victim == "launcher" else ranks[victim], signal.SIGKILL)
                stdout, stderr = process.communicate(timeout=DEADLINE_S)
                self.assertTrue(all(ends(pid, DEADLINE_S) for pid in ranks.values()))
                self.assertEqual(stdout, "")
                if victim == "launcher":
                    continue
                self.assertEqual(process.returncode, 1)
                self.assertIn(f"firkin: rank {victim} was ended by signal 9 (Killed); ending the other ranks", stderr)
                if (self.out / "results.json").exists():  # what was known by then
                    self.assertFalse(self.results()["complete"])

    def test_a_run_keeps_its_folder_to_itself_and_an_interrupt_keeps_what_is_known(self):
        process = self.start("--blocks", "100000", "--allreduce-time", "0.5s")
        ranks = wait_for_ranks(process.pid, 2)
        wait_until((self.out / "tensors.csv").exists)
        self.assert_refused("tune", "--ranks", "2", *TINY_MODEL, *TINY_RUN, "--out", self.out, mentions="another run")
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=DEADLINE_S)
        self.assertEqual(process.returncode, 128 + signal.SIGINT)
        self.assertIn("ending the ranks", stderr)
        self.assertFalse(any(is_running(pid) for pid in ranks.values()))
        kept = self.results()
        self.assertFalse(kept["complete"])
        self.assertGreater(len(kept["profile"]["tensors"]), 0)
        self.assertEqual(firkin("report", str(self.out / "results.json")).returncode, 0)

    @pytest.mark.full
    def test_two_at_once_do_not_meet(self):
        first, second = self.start(*TINY_RUN, "--json"), self.start(*TINY_RUN, "--json", out=self.out / "second")
        for process in (first, second):
            json.loads(self.ended(process)[0])


def wait_for_ranks(launcher, count):
    """Process ids by rank, once each runs the program proper."""

    def started():
        by_rank = {}
        for pid in children_of(launcher):
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")  # empty while it begins another program
            ranks = [int(entry[5:]) for entry in environment if entry.startswith(b"RANK=")]
            threads = len(list(pathlib.Path(f"/proc/{pid}/task").iterdir()))
            if ranks and threads > 2:  # Gloo's threads: the group stands
                by_rank[ranks[0]] = pid
        return len(by_rank) == count and by_rank

    return wait_until(started)
