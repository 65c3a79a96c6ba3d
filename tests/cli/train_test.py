"""firkin train and firkin sample as a user meets them: real ranks, signals, kills, checkpoints, bad input.

FIRKIN names the binary. `train_test.py --kills 100` kills more often than the test does.
"""

import csv
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time
import unittest

import training
from training import DEADLINE_S, FIRKIN, TINY, Training, checkpoints_in, firkin, lines_of, losses_of, taken_flag, words_of

KILLS = 4


def torch_names(out):
    """The names of the tensors in the newest checkpoint, as Python's torch.load() has them."""
    import torch

    return set(torch.load(out / "checkpoints" / checkpoints_in(out)[-1], weights_only=True))


class Runs(Training):
    def test_the_loss_falls_and_everything_is_in_the_folder(self):
        printed = self.train("--steps", 40, "--learning-rate", "1e-2", "--evaluate-every", 10, "--checkpoint-every", 10).stdout
        losses = losses_of(self.out)
        self.assertEqual(len(losses), 40)
        self.assertLess(losses[-1], 0.7 * losses[0])
        self.assertIn("tokens/s", printed)
        held = [line["step"] for line in lines_of(self.out) if "held_loss" in line]
        self.assertEqual(held, [9, 19, 29, 39])
        self.assertEqual(checkpoints_in(self.out), ["step-00000020.ckpt", "step-00000030.ckpt", "step-00000040.ckpt"])
        results = json.loads((self.out / "results.json").read_text())
        self.assertEqual(results["settings"]["global-batch"], "8")
        self.assertEqual(results["training"]["steps"], 40)
        self.assertAlmostEqual(results["training"]["last_loss"], losses[-1])
        self.assertTrue((self.out / "report.html").exists())

    def test_the_table_holds_what_the_lines_hold(self):
        self.train("--steps", 6, "--evaluate-every", 3, "--checkpoint-every", 3)
        with open(self.out / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        for row, line in zip(rows, lines_of(self.out), strict=True):
            self.assertEqual({name: float(value) for name, value in row.items() if value}, line)
        self.train("--steps", 8, "--evaluate-every", 3, "--checkpoint-every", 3, "--resume")
        with open(self.out / "metrics.csv", newline="") as file:
            self.assertEqual([row["step"] for row in csv.DictReader(file)], [str(step) for step in range(8)])

    def test_two_trainings_are_reported_in_the_same_charts(self):
        folders = [self.folder / name for name in ("slow", "fast")]
        for folder, rate in zip(folders, ("1e-3", "1e-2"), strict=True):
            self.train("--steps", 4, "--learning-rate", rate, out=folder)
        page = self.folder / "both.html"
        result = firkin("report", *folders, "--html", page)
        self.assertEqual(result.returncode, 0, result.stderr)
        for part in ("chart-losses", "chart-speeds", "Trainings side by side", ">slow<", ">fast<"):
            self.assertIn(part, page.read_text())

    def test_bf16_keeps_master_weights_unless_it_is_told_not_to(self):
        words = ["--steps", 8, "--dtype", "bf16", "--checkpoint-every", 4]
        self.assertIn("optimiser", self.train(*words, out=self.folder / "whole").stderr)
        self.train("--steps", 4, *words[2:])
        self.refused("--ranks", 2, *words, "--no-master-weights", "--resume", expected="master-weights was true and is now false")
        (self.out / "checkpoints" / "step-00000008.ckpt").unlink(missing_ok=True)
        self.train(*words, "--no-master-weights", out=self.folder / "without")
        names = {name: torch_names(self.folder / name) for name in ("whole", "without")}
        self.assertTrue(any(name.startswith("master/") for name in names["whole"]))
        self.assertFalse(any(name.startswith("master/") for name in names["without"]))

    def test_json_is_all_of_standard_output(self):
        result = json.loads(self.train("--steps", 3, "--json").stdout)
        self.assertEqual(result["training"]["steps"], 3)

    def test_another_run_keeps_what_was_there(self):
        self.train("--steps", 2)
        before = losses_of(self.out)
        self.train("--steps", 3)
        kept = [json.loads(line)["loss"] for line in (self.out / "metrics.1.jsonl").read_text().splitlines()]
        self.assertEqual(kept, before)
        self.assertTrue((self.out / "checkpoints.1" / "step-00000002.ckpt").exists())

    def test_tokens_of_llm_c_are_trained_on(self):
        tokens = [i * 7 % 300 for i in range(2000)]
        header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
        file = self.folder / "tokens.bin"
        file.write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))
        self.train("--data", file, "--vocab-size", 300, "--steps", 2)
        self.refused("--data", file, "--vocab-size", 256, "--steps", 2, expected="expected tokens below the model's vocab_size 256")

    def test_flags_come_from_a_file(self):
        (self.folder / "run.toml").write_text("[train]\nsteps = 3\nglobal-batch = 4\n")
        words = [word for word in TINY if word not in ("--global-batch", 8)]
        result = firkin("train", *words, "--ranks", 2, "--out", self.out, "--config", self.folder / "run.toml")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(losses_of(self.out)), 3)

    def test_automatic_buckets_train_the_same(self):
        self.train("--steps", 30, out=self.folder / "cap")
        self.train("--steps", 30, "--buckets", "automatic")
        for ours, theirs in zip(losses_of(self.out), losses_of(self.folder / "cap"), strict=True):
            self.assertAlmostEqual(ours, theirs, delta=1e-5)
        self.refused("--buckets", "automatic", "--strategy", "flat", expected="expected --strategy bucketed or ordered, not flat")

    def test_ordered_with_clipping_of_all_gradients_trains_bucketed_and_says_so(self):
        result = self.train("--steps", 3, "--strategy", "ordered")
        self.assertIn("ordered has nothing to overlap: training bucketed", result.stderr)
        result = self.train("--steps", 3, "--strategy", "ordered", "--clip-each", "0.1", out=self.folder / "each")
        self.assertNotIn("training bucketed", result.stderr)
        self.refused("--clip", 1, "--clip-each", 1, expected="--clip")

    def test_sharded_trains_the_same_and_any_ranks_and_strategy_go_on_from_its_checkpoint(self):
        words = ["--steps", 8, "--checkpoint-every", 4, "--evaluate-every", 4]
        for strategy in ("bucketed", "sharded"):
            self.train(*words, "--strategy", strategy, out=self.folder / strategy)
        expected = losses_of(self.folder / "bucketed")
        out = self.folder / "sharded"
        self.assertEqual(torch_names(out), torch_names(self.folder / "bucketed"))
        for strategy, ranks in (("sharded", 2), ("sharded", 4), ("bucketed", 1)):
            (out / "checkpoints" / "step-00000008.ckpt").unlink(missing_ok=True)
            self.train(*words, "--strategy", strategy, "--resume", out=out, ranks=ranks)
            for ours, theirs in zip(losses_of(out), expected, strict=True):
                self.assertAlmostEqual(ours, theirs, delta=1e-5)
        (out / "checkpoints" / "step-00000008.ckpt").unlink()
        self.train(*words, "--strategy", "sharded", "--resume", out=self.folder / "bucketed")
        self.refused("--strategy", "sharded", "--clip-each", 1, expected="--clip-each: expected --clip with --strategy sharded")

    def test_sharded_keeps_master_weights_of_its_parts(self):
        words = ["--steps", 12, "--checkpoint-every", 8, "--dtype", "bf16", "--clip", 0]
        for strategy in ("bucketed", "sharded"):
            self.train(*words, "--strategy", strategy, out=self.folder / strategy)
        out = self.folder / "sharded"
        expected = losses_of(self.folder / "bucketed")
        self.assertEqual(losses_of(out), expected)
        (out / "checkpoints" / "step-00000012.ckpt").unlink()
        self.train(*words, "--strategy", "sharded", "--resume", out=out)
        self.assertEqual(losses_of(out), expected)

    def test_sharded_leaves_out_a_step_that_is_not_finite_on_every_rank(self):
        words = ["--steps", 8, "--learning-rate", "1e30", "--clip", 0, "--on-nan", "skip", "--strategy", "sharded"]
        self.train(*words)
        self.assertTrue(any("skipped" in line for line in lines_of(self.out)))

    def test_bad_flags_are_one_line(self):
        self.refused("--ranks", 3, expected="--global-batch: a batch of 8 sequences on 3 ranks")
        self.refused("--learning-rate", "-1", expected="--learning-rate -1: expected 0 to 1e+30")
        self.refused("--data", self.folder / "none.txt", expected="none.txt: cannot be read")
        self.refused("--context-length", 20, expected="--sequence 32: expected at most the model's context_length")
        self.refused("--memory-limit", "0.01GiB", expected="training takes about")
        self.refused("--strategy", "torch", expected="--strategy: torch is only for comparison, in firkin bench step and firkin trace")

    def test_a_loss_that_explodes_ends_the_run_and_is_named(self):
        words = ["train", *TINY, "--ranks", 2, "--out", self.out, "--steps", 20, "--learning-rate", "1e30", "--clip", 0]
        result = firkin(*words)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"firkin: step \d+: rank 0: loss ")
        skipped = firkin(*words, "--on-nan", "skip")
        self.assertEqual(skipped.returncode, 0, skipped.stderr)
        self.assertIn("the step is skipped", skipped.stderr)
        self.assertTrue(all("skipped" in line for line in lines_of(self.out)[5:]))


class Resumes(Training):
    """Losses are compared as text: to the last bit."""

    def test_losses_are_those_of_the_uninterrupted_run(self):
        self.train("--steps", 12, out=self.folder / "whole")
        first = firkin("train", *TINY, "--ranks", 2, "--out", self.out, "--steps", 12, "--checkpoint-every", 5)
        self.assertEqual(first.returncode, 0)
        for later in ("step-00000010.ckpt", "step-00000012.ckpt"):
            (self.out / "checkpoints" / later).unlink()
        result = self.train("--steps", 12, "--checkpoint-every", 5, "--resume")
        self.assertIn("5 steps done", result.stderr)
        self.assertEqual(losses_of(self.out), losses_of(self.folder / "whole"))

    def test_without_a_checkpoint_it_starts(self):
        self.assertIn("starting from the first step", self.train("--steps", 2, "--resume").stderr)

    def test_a_damaged_checkpoint_is_named_and_the_older_one_offered(self):
        self.train("--steps", 10, "--checkpoint-every", 5)
        newest, older = (self.out / "checkpoints" / f"step-000000{step}.ckpt" for step in ("10", "05"))
        whole = newest.read_bytes()
        resume = ["--ranks", 2, "--steps", 12, "--resume"]
        newest.write_bytes(whole[:-1000])
        self.refused(*resume, expected="step-00000010.ckpt: truncated, or not a checkpoint of firkin train; that of step 5 is intact")
        newest.write_bytes(whole[:5000] + b"x" + whole[5001:])
        self.refused(*resume, expected="step-00000010.ckpt: damaged: its checksum is")
        newest.write_bytes(whole.replace(b'"firkin_checkpoint":1', b'"firkin_checkpoint":9'))
        self.refused(*resume, expected="step-00000010.ckpt: format 9; this version of Firkin reads format 1")
        newest.write_text("something else")
        self.refused(*resume, expected="step-00000010.ckpt: not a checkpoint of firkin train; that of step 5 is intact: --resume --from")
        self.assertIn("5 steps done", self.train("--steps", 12, "--resume", "--from", older).stderr)

    def test_another_training_is_refused(self):
        self.train("--steps", 4)
        self.refused("--ranks", 2, "--steps", 6, "--seed", 5, "--resume", expected="seed was 0 and is now 5")

    def test_other_steps_or_another_rate_are_said(self):
        self.train("--steps", 4)
        said = self.train("--steps", 6, "--learning-rate", "1e-2", "--resume").stderr
        self.assertIn("the remaining steps use --learning-rate 0.01 (before: 0.001), --steps 6 (before: 4)\n", said)
        self.assertNotIn("what is left", self.train("--steps", 6, "--learning-rate", "1e-2", "--resume").stderr)

    def test_two_runs_into_one_folder_are_refused(self):
        running = subprocess.Popen(words_of("train", *TINY, "--ranks", 2, "--out", self.out, "--steps", 100000, "--print-every", 1),
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        try:
            running.stdout.readline()
            self.refused("--ranks", 2, expected="another run (process")
        finally:
            running.kill()
            running.wait()
            running.stdout.close()

    def test_a_disk_that_takes_no_checkpoint_is_one_line_and_training_goes_on(self):
        limit = ["bash", "-c", 'ulimit -f 2000; exec "$@"', "bash"]  # of 1 KiB: metrics and page fit, checkpoints do not
        result = subprocess.run(limit + words_of("train", "--d-model", 128, *TINY[2:], "--ranks", 2, "--out", self.out, "--steps", 6, "--checkpoint-every", 3),
                                capture_output=True, text=True, timeout=DEADLINE_S)  # fmt: skip
        self.assertEqual(len(losses_of(self.out)), 6)
        self.assertIn("the checkpoint of step 3 was not written", result.stderr)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("firkin: the training ended without its last checkpoint", result.stderr)
        self.assertEqual(list((self.out / "checkpoints").iterdir()), [])


class Interrupted(Training):
    def running(self, *words):
        command = words_of("train", *TINY, "--ranks", 2, "--out", self.out, "--steps", 100000, "--checkpoint-every", 1000, *words)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while not process.stdout.readline().strip().startswith("10 "):
            pass
        return process

    def test_signals_finish_the_step_and_leave_a_checkpoint(self):
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            with self.subTest(name=name):
                process = self.running()
                process.send_signal(name)
                printed, said = process.communicate(timeout=DEADLINE_S)
                self.assertEqual(process.returncode, 0, said)
                self.assertIn("Stopped early", printed)
                done = len(losses_of(self.out))
                self.assertEqual(checkpoints_in(self.out)[-1], f"step-{done:08}.ckpt")

    def test_a_signal_whose_checkpoint_cannot_be_written_is_a_failure(self):
        process = self.running()
        folder = self.out / "checkpoints"
        folder.rmdir()
        folder.write_text("in the way")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=DEADLINE_S)[1]
        self.assertEqual(process.returncode, 1, said)
        self.assertIn("firkin: the training ended without its last checkpoint", said)

    def test_a_kill_at_any_moment_leaves_a_checkpoint_to_go_on_from(self):
        """With rank 0, rank 1 or the launcher as victim, in turn. All losses are those of a run that was left alone."""
        steps = 100 * KILLS
        words = ["--steps", steps, "--checkpoint-every", 3, "--evaluate-every", 0]
        self.train(*words, out=self.folder / "whole")
        expected = losses_of(self.folder / "whole")
        draw = random.Random(3)
        for kill in range(KILLS):
            with self.subTest(kill=kill):
                command = words_of("train", *TINY, "--ranks", 2, "--out", self.out, *words, "--resume", "--print-every", 1)
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                process.stdout.readline()
                time.sleep(draw.uniform(0, 1))
                children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                victims = [int(child) for child in children] + [process.pid]
                os.kill(victims[kill % len(victims)], signal.SIGKILL)
                said = process.communicate(timeout=DEADLINE_S)[1]
                self.assertNotIn("damaged", said)
                self.assertNotIn("truncated", said)
                if losses_of(self.out)[:1]:
                    self.assertEqual(losses_of(self.out)[:-1], expected[: len(losses_of(self.out)) - 1])
        self.train(*words, "--resume")
        self.assertEqual(losses_of(self.out), expected)


class BinaryFiles(Training):
    def test_what_is_cut_or_noise_is_refused_with_its_name(self):
        self.train("--steps", 1, "--export", self.folder / "good.safetensors")
        whole = {"checkpoint": (self.out / "checkpoints" / checkpoints_in(self.out)[0]).read_bytes(),
                 "safetensors": (self.folder / "good.safetensors").read_bytes(),
                 "bin": struct.pack("<256i", 20240520, 1, 500, *[0] * 253) + bytes(1000)}  # fmt: skip
        noise = random.Random(1).randbytes(4001)
        for kind, content in whole.items():
            bad = self.folder / f"bad.{kind}"
            words = {"checkpoint": ["sample", bad], "safetensors": ["--import", bad], "bin": ["--data", bad]}[kind]
            for case, damaged in {"empty": b"", "begun": content[:30], "cut": content[:-2], "noise": noise}.items():
                if (kind, case) == ("bin", "begun"):
                    continue  # 15 tokens
                with self.subTest(kind=kind, case=case):
                    bad.write_bytes(damaged)
                    result = firkin(*words) if kind == "checkpoint" else firkin("train", *TINY, "--out", self.folder / "not", *words)
                    self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                    self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                    self.assertIn(f"{bad}: ", result.stderr)


class Samples(Training):
    def test_a_trained_model_writes_text(self):
        self.train("--steps", 60, "--learning-rate", "1e-2")
        result = firkin("sample", self.out, "--prompt", "The c", "--count", 40, "--seed", 1)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.startswith("The c"))
        self.assertEqual(len(result.stdout), len("The c") + 40 + 1)
        self.assertEqual(firkin("sample", self.out, "--prompt", "The c", "--count", 40, "--seed", 1).stdout, result.stdout)
        newest = self.out / "checkpoints" / checkpoints_in(self.out)[-1]
        answer = json.loads(firkin("sample", newest, "--prompt", "The c", "--count", 40, "--seed", 1, "--json").stdout)
        self.assertEqual("The c" + answer["text"] + "\n", result.stdout)
        likeliest = firkin("sample", self.out, "--prompt", "T", "--count", 10, "--temperature", 0).stdout
        self.assertEqual(firkin("sample", self.out, "--prompt", "T", "--count", 10, "--top-k", 1, "--seed", 9).stdout, likeliest)

    def test_what_is_no_checkpoint_is_refused(self):
        for words in (["sample", self.folder], ["sample", self.folder / "none.ckpt"], ["sample", FIRKIN]):
            result = firkin(*words)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("checkpoint" if words[1] != self.folder / "none.ckpt" else "cannot be read", result.stderr)


if __name__ == "__main__":
    if "--kills" in sys.argv:
        KILLS = int(taken_flag("--kills", KILLS))
        training.DEADLINE_S = DEADLINE_S = DEADLINE_S * max(1, KILLS // 10)
        sys.argv.append("Interrupted.test_a_kill_at_any_moment_leaves_a_checkpoint_to_go_on_from")
    unittest.main(verbosity=2)
