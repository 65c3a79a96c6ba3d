"""--device and --backend of every command that runs ranks, on a machine without a GPU; with one it is skipped, see tests/cuda."""

import os

from program import InFolder

NO_GPU = dict(os.environ, CUDA_VISIBLE_DEVICES="")


class Device(InFolder):
    def test_what_needs_a_gpu_is_refused_in_one_line_by_every_command(self):
        for i, command in enumerate(("tune", "bench allreduce", "trace", "bench step", "bench chunks", "bench collectives", "bench layers")):
            mentions, *asked = [("expected cpu", "--device", "cuda"), ("backend nccl: ", "--backend", "nccl")][i % 2]
            self.assert_refused(*command.split(), *asked, "--out", self.out, mentions=mentions, env=NO_GPU)
            self.assertFalse(self.out.exists(), command)

    def test_the_cpu_over_gloo_is_what_there_is_by_default(self):
        self.assert_succeeds("bench", "allreduce", "-b", 8, "-e", 8, "--time", "0.1s", "--out", self.out, env=NO_GPU)
        environment = self.results()["environment"]
        self.assertEqual((environment["device"], environment["backend"], environment.get("gpu")), ("cpu", "gloo", None))
