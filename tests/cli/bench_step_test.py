"""firkin bench step as a user meets it: the matrix, what does not fit, what was interrupted."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess

import pytest
from processes import wait_until
from program import DEADLINE_S, FIRKIN, TINY, InFolder, firkin, launched


def words_of(*words, blocks=4, model=TINY, ranks=2):
    return ["bench", "step", "--ranks", ranks, *model, "--blocks", blocks, *words]


def shape_of(configuration):
    return configuration["model"]["batch_size"], configuration["model"]["sequence_length"]


class Steps(InFolder):
    def bench_step(self, *words, **settings):
        return self.assert_succeeds(*words_of(*words, **settings))


class Matrix(Steps):
    def test_every_configuration_has_every_strategy_and_cap_with_its_figures(self):
        config = self.folder / "matrix.toml"
        config.write_text('[bench.step]\nbatch = [1, 2]\nsequence = [16]\n')
        results = json.loads(self.bench_step("--config", config, "--cap", "0.05MiB,1MiB", "--out", self.out, "--json").stdout)
        self.assertEqual(results, self.results())
        self.assertTrue(results["complete"])
        self.assertEqual([shape_of(c) for c in results["configurations"]], [(1, 16), (2, 16)])
        for configuration in results["configurations"]:
            rows = configuration["strategies"]
            settings = [(r["strategy"], r.get("cap_mib")) for r in rows]
            uncapped = [(s, None) for s in ("none", "naive", "flat", "overlap")]
            self.assertEqual(settings, uncapped + [(s, cap) for s in ("bucketed", "torch") for cap in (0.05, 1)])
            for row in rows:
                self.assertGreater(row["measured_s"], 0)
                self.assertLessEqual(row["measured_ci_s"]["low"], row["measured_s"])
                self.assertGreater(row["tokens_per_s"], 0)
                self.assertGreaterEqual(row["peak_memory_bytes"], configuration["model"]["gradient_bytes"])
                self.assertTrue(0 <= row["rank_spread"] < 1)
            by_setting = dict(zip(settings, rows))
            self.assertIn("overlap_percent", by_setting[("bucketed", 1)])
            self.assertIn("ratio_to_torch", by_setting[("bucketed", 0.05)])
            self.assertEqual(by_setting[("flat", None)]["buckets"], 1)
            self.assertEqual(len(configuration["samples"]["step_s"]), len(rows))
        self.assert_read_whole("steps")

    def test_it_says_first_how_long_it_will_take(self):
        said = self.bench_step("--batch", "1", "--sequence", "16,32", "--strategies", "flat", "--out", self.out).stderr
        self.assertRegex(said, r"(?m)^about \d+ (s|min): 2 configurations of 2 settings in 4 blocks$")
        self.assertEqual(len(re.findall("(?m)^about ", said)), 1, said)
        bare = firkin("bench", "step", "--help").stdout
        self.assertIn("=[4]", re.search(r"--batch .*", bare)[0])
        self.assertIn("=[128]", re.search(r"--sequence .*", bare)[0])

    def test_after_the_first_block_it_says_how_long_is_left(self):
        profile = self.folder / "tensors.csv"
        profile.write_text("name,bytes,ready_s\na,4096,0.1\n")  # 0.15 s a step, and three steps a visit
        reader, terminal = pty.openpty()
        words = ["bench", "step", "--ranks", 1, "--replay", profile, "--strategies", "flat", "--blocks", 4, "--out", self.out]
        with subprocess.Popen([FIRKIN, *map(str, words)], stdout=subprocess.DEVNULL, stderr=terminal) as process:
            os.close(terminal)
            screen = b""
            with contextlib.suppress(OSError):  # the other end is closed
                while piece := os.read(reader, 1 << 16):
                    screen += piece
            os.close(reader)
        self.assertEqual(process.returncode, 0, screen)
        left = {int(done): int(seconds) for done, seconds in re.findall(r"steps (\d)/8 [^\r\n]*, about (\d+) s left", screen.decode())}
        self.assertNotIn(1, left, screen)
        self.assertEqual(sorted(left)[:3], [2, 3, 4], screen)
        self.assertLessEqual(2, left[2])
        self.assertLess(left[4], left[2])

    def test_a_configuration_that_does_not_fit_is_skipped_by_all_ranks_and_said(self):
        # A process of LibTorch takes 200 MiB, 256 tokens hardly more, and 16,384 far more than another 35.
        words = ["--batch", "16", "--sequence", "16,1024", "--strategies", "flat", "--memory-limit", "0.23GiB"]
        result = self.bench_step(*words, "--out", self.out)
        self.assertIn("out of memory (skipping this config): estimated", result.stdout)
        status = {shape_of(c): c["status"] for c in self.results()["configurations"]}
        self.assertEqual(status, {(16, 16): "measured", (16, 1024): "out of memory"})
        self.assert_read_whole("steps")

    def test_an_interrupted_matrix_is_a_valid_file_and_resumes(self):
        for blocks in (10, 100, 1000):  # so many that this machine is not too fast to be interrupted
            self.out = self.folder / f"{blocks} blocks"
            shape = ["--batch", "1", "--sequence", "16,24,32", "--strategies", "flat", "--out", str(self.out)]
            words = [FIRKIN, *map(str, words_of(*shape, blocks=blocks))]
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            results = self.out / "results.json"
            wait_until(lambda process=process, results=results: results.exists() or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            process.wait(timeout=DEADLINE_S)
            partial = self.results()
            if not partial["complete"]:
                break
        self.assertEqual((partial["complete"], len(partial["configurations"]) > 0), (False, True))

        result = self.bench_step(*shape, "--resume", blocks=blocks)
        self.assertIn("measured before: ", result.stdout)
        resumed = self.results()
        self.assertTrue(resumed["complete"])
        self.assertEqual(len(resumed["configurations"]), 3)
        self.assertEqual(resumed["configurations"][: len(partial["configurations"])], partial["configurations"])

        self.assert_refused(*words_of(*shape, "--resume", blocks=11), mentions=f"--blocks {blocks}, now 11")

    def test_bad_input_is_one_line_before_any_rank_starts(self):
        short = self.folder / "short.txt"
        short.write_text("x" * 100)
        wrong = self.folder / "wrong.toml"
        wrong.write_text("[bench.step]\nbatches = [1, 2]\n")
        for words, mentions in [
            (["--batch", "8", "--sequence", "32", "--data", str(short)], "--batch 8: 256 tokens; expected at most the 100 bytes"),
            (["--dtype", "fp8"], "--dtype: fp8 not in {fp32,bf16}"),
            (["--model", "demo,huge"], "unknown model 'huge'"),
            (["--strategies", "planned"], "--strategies: planned not in {none,naive,"),
            (["--memory-limit", "1025TiB"], "--memory-limit: 1025TiB: expected at most 1024TiB"),
            (["--cap", "4MiB,1MiB,4096KiB"], "--cap: 4096KiB is given twice; expected each value once"),
            (["--batch", "2,4,2"], "--batch: 2 is given twice; expected each value once"),
            (["--strategies", "naive,naive"], "--strategies: naive is given twice"),
            (["--config", wrong], "batches"),
            (["--out", str(short / "out")], "--out"),
        ]:
            self.assert_refused(*words_of(*words), mentions=mentions)

    @pytest.mark.full
    def test_sharded_parts_need_not_be_whole_floats_and_bf16_takes_two_bytes_of_each(self):
        words = ["--strategies", "sharded", "--cap", "0.05MiB", "--batch", "1", "--sequence", "16", "--dtype", "bf16"]
        self.bench_step(*words, "--out", self.out, ranks=3)
        model = self.results()["configurations"][0]["model"]
        self.assertEqual(model["gradient_bytes"], 2 * model["parameters"])

    @pytest.mark.full
    def test_what_did_not_fit_is_tried_again_with_another_limit(self):
        shape = ["--batch", "1", "--sequence", "16", "--strategies", "flat", "--out", str(self.out)]
        self.bench_step(*shape, "--memory-limit", "0.1GiB")
        self.assertEqual([c["status"] for c in self.results()["configurations"]], ["out of memory"])
        self.bench_step(*shape, "--memory-limit", "4GiB", "--resume")
        self.assertEqual([c["status"] for c in self.results()["configurations"]], ["measured"])

    @pytest.mark.full
    def test_on_a_resume_rank_0_alone_reads_the_earlier_result(self):
        """As on several machines, of which others than rank 0's may have any file, or none, under that name."""
        of_rank_1 = self.folder / "other"
        of_rank_1.mkdir()
        (of_rank_1 / "results.json").write_text("not a result")
        words = words_of("--batch", 1, "--sequence", 16, "--strategies", "flat", "--resume")
        with launched(*([*words, "--out", out] for out in (self.out, of_rank_1))) as ranks:
            messages = [rank.communicate(timeout=DEADLINE_S)[1] for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], messages)
        self.assertTrue(self.results()["complete"])

    @pytest.mark.full
    def test_a_resume_on_another_machine_or_version_is_refused_and_says_which(self):
        shape = ["--batch", "1", "--sequence", "16", "--strategies", "flat", "--out", str(self.out)]
        self.bench_step(*shape)
        file = self.out / "results.json"
        for path, value, mentions in [
            (["environment", "firkin"], "0.0.1", "firkin 0.0.1, now"),
            (["environment", "libtorch"], "1.0", "libtorch 1.0, now"),
            (["environment", "hosts", 0, "host"], "elsewhere", "host elsewhere, now"),
            (["settings", "warmup"], "7", "--warmup 7, now 1"),
            (["settings", "warmup"], 7, "settings.warmup"),
        ]:
            with self.subTest(mentions=mentions):
                changed = place = self.results()
                for step in path[:-1]:
                    place = place[step]
                kept, place[path[-1]] = file.read_text(), value
                file.write_text(json.dumps(changed))
                self.assert_refused(*words_of(*shape, "--resume"), mentions=mentions)
                file.write_text(kept)
