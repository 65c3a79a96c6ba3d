"""lab/run asked for what it cannot do: one line, exit code 2. Needs no right to make namespaces."""

import subprocess

from folders import InAFolder
from labs import RUN, lab


class Usage(InAFolder):
    def assert_refused(self, result, mentions):
        self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("lab/run: "), result.stderr)
        self.assertIn(mentions, result.stderr)

    def test_bad_flags(self):
        for words, mentions in [
            (["--rate", "1gbti"], "--rate 1gbti: expected a rate such as 1gbit"),
            (["--rate", "0gbit"], "--rate 0gbit: expected"),
            (["--rate", ""], "--rate : expected"),
            (["--rate", "1gbit,"], "--rate : expected"),
            (["--hosts", "3", "--rate", "1gbit,300mbit"], "--rate 1gbit,300mbit: expected one rate, or one for each of 3 hosts"),
            (["--rate", "1gbit burst 1"], "expected a rate"),
            (["--latency", "1"], "--latency 1: expected a time such as 50us or 1ms"),
            (["--burst", "big"], "--burst big: expected a size"),
            (["--hosts", "1"], "--hosts 1: expected 2 to 4"),
            (["--hosts", "5"], "--hosts 5: expected 2 to 4"),
            (["--hosts", "two"], "--hosts"),
            (["--cores", "0"], "--cores 0: expected 1 or more"),
            (["--frobnicate"], "--frobnicate"),
        ]:
            with self.subTest(words=words):
                self.assert_refused(lab(*words, command=["true"]), mentions)

    def test_no_command(self):
        for words in [[], ["--rate", "1gbit"], ["--rate", "1gbit", "--"]]:
            self.assert_refused(subprocess.run([RUN, *words], capture_output=True, text=True), "no command; expected one after --")

    def test_a_machine_that_allows_no_network_namespaces(self):
        allows_none = ["unshare", "--user", "--map-root-user", "sh", "-c", 'echo 0 >/proc/sys/user/max_net_namespaces && exec "$@"', "sh"]
        if subprocess.run([*allows_none, "true"], capture_output=True).returncode != 0:
            allows_none = []  # then it does not allow them as it is, or root may and others may not
            if lab(command=["true"]).returncode == 0:
                self.skipTest("users may not make namespaces here")
        self.assert_refused(lab(command=["true"], prefix=allows_none), "network namespaces cannot be made here")

    def test_a_machine_without_iproute2(self):
        hidden = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount --bind "$0" /usr/sbin && exec "$@"', self.folder]
        if subprocess.run([*hidden, "true"], capture_output=True).returncode != 0:
            self.skipTest("users may not make namespaces here")
        self.assert_refused(lab("--rate", "1gbit", command=["true"], prefix=hidden), "in PATH; expected Debian's package iproute2")
