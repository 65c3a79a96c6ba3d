"""The hosts of a lab: what a command finds on them, what they leave behind, and what their links carry. No LibTorch."""

import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import unittest

from processes import wait_until
from labs import DEADLINE_S, PAYLOAD, TRANSFER, lab, skip_without_hosts, start_lab

TOLERANCE = 0.2  # of a rate

# Two hosts at once send to host 0, which says how many seconds the 2 MB took.
INCAST = """
import os, socket, time
if os.environ["RANK"] == "0":
    server = socket.create_server(("", 5001))
    connections = [server.accept()[0] for _ in range(2)]
    begin = time.monotonic()
    for connection in connections:
        connection.sendall(b"g")
    for connection in connections:
        while connection.recv(1 << 16):
            pass
    print(time.monotonic() - begin)
else:
    while True:
        try:
            connection = socket.create_connection(("host0", 5001))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    connection.recv(1)
    connection.sendall(bytes(1_000_000))
"""


def shell(script):
    return ["sh", "-c", script]


def lines_of_host(stderr, host):
    return [line.removeprefix(f"[{host}] ") for line in stderr.splitlines() if line.startswith(f"[{host}] ")]


def is_gone(namespace):
    """Whether no process that this one can see belongs to a network namespace such as net:[4026532281]."""
    for link in pathlib.Path("/proc").glob("[0-9]*/ns/net"):
        try:
            if os.readlink(link) == namespace:
                return False
        except OSError:
            continue
    return True


def setUpModule():  # unittest's name
    skip_without_hosts()


class Command(unittest.TestCase):
    def test_every_host_finds_a_launchers_variables(self):
        script = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK $MASTER_ADDR $MASTER_PORT $GLOO_SOCKET_IFNAME $(hostname)"
        result = lab("--hosts", 3, command=shell(script))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "0 3 0 1 0 10.77.0.1 29500 lab0 host0\n")
        for rank in (1, 2):
            self.assertEqual(lines_of_host(result.stderr, f"host{rank}"), [f"{rank} 3 0 1 {rank} 10.77.0.1 29500 lab0 host{rank}"])

    def cores_and_threads(self, *options):
        """Host 0's and host 1's, and what the lab says."""
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        script = "import os; print(*sorted(os.sched_getaffinity(0)), 'threads', os.environ['OMP_NUM_THREADS'])"
        result = lab(*options, command=[sys.executable, "-c", script], env=environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.splitlines() + lines_of_host(result.stderr, "host1"), result.stderr

    def test_each_host_has_a_core_and_a_thread_where_there_are_enough(self):
        usable = sorted(os.sched_getaffinity(0))
        if len(usable) < 2:
            self.skipTest("one core")
        hosts, said = self.cores_and_threads()
        self.assertEqual(hosts, [f"{usable[0]} threads 1", f"{usable[1]} threads 1"])
        self.assertNotIn("share", said)

    def test_hosts_share_what_is_not_enough_for_all(self):
        usable = sorted(os.sched_getaffinity(0))
        hosts, said = self.cores_and_threads("--cores", 10000)
        everything = f"{' '.join(map(str, usable))} threads {max(1, len(usable) // 2)}"
        self.assertEqual(hosts, [everything, everything])
        self.assertIn(f"lab/run: only {len(usable)} cores for 2 hosts, which share them\n", said)

    def test_output_of_host_0_is_its_own_and_others_are_named_line_by_line(self):
        result = lab(command=shell('echo "out $RANK"; echo "err $RANK" >&2; printf "no end of line"'))
        self.assertEqual(result.stdout, "out 0\nno end of line")
        self.assertEqual(sorted(lines_of_host(result.stderr, "host1")), ["err 1", "no end of line", "out 1"])
        self.assertIn("err 0\n", result.stderr)

    def test_the_exit_code_is_that_of_the_first_that_fails_and_the_others_are_ended(self):
        result = lab(command=shell("[ $RANK = 1 ] && exit 7; sleep 1000"))
        self.assertEqual(result.returncode, 7)
        self.assertIn("lab/run: host1 failed with exit code 7; ending the others\n", result.stderr)
        result = lab(command=shell("[ $RANK = 0 ] && kill -9 $$; trap '' TERM; sleep 1000 & wait; sleep 1000"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("lab/run: host0 was ended by signal 9 (Killed); ending the others\n", result.stderr)

    def test_a_command_that_is_not_there(self):
        result = lab(command=["no-such-command"])
        self.assertEqual((result.returncode, result.stderr), (2, "lab/run: no-such-command: cannot be started: No such file or directory\n"))

    def test_an_interrupt_reaches_every_host_once(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number.name):
                process = start_lab(command=["bash", "-c", "trap 'echo ending; exit 0' INT TERM; echo up; echo up >&2; while :; do sleep 0.1; done"])
                self.assertEqual(process.stdout.readline(), "up\n")
                while "[host1]" not in process.stderr.readline():
                    pass
                process.send_signal(number)
                stdout, stderr = process.communicate(timeout=DEADLINE_S)
                self.assertEqual(process.returncode, 128 + number)
                self.assertEqual(stdout, "ending\n")
                self.assertEqual(lines_of_host(stderr, "host1")[-1], "ending")
                self.assertEqual(stderr.count("ending all hosts"), 1)


class Machine(unittest.TestCase):
    def seen_from_outside(self):
        links = subprocess.run(["ip", "-o", "address"], capture_output=True, text=True, env=dict(os.environ, PATH=os.environ["PATH"] + ":/sbin"))
        return [links.stdout, pathlib.Path("/proc/self/mounts").read_text(), pathlib.Path("/etc/hosts").read_text(), os.uname().nodename,
                sorted(os.listdir("/run/netns")) if os.path.exists("/run/netns") else [], sorted(os.listdir("/mnt"))]

    def test_nothing_changes_outside_and_nothing_is_left_even_after_a_kill(self):
        before = self.seen_from_outside()
        with tempfile.TemporaryDirectory() as folder:
            fifo = pathlib.Path(folder) / "fifo"
            os.mkfifo(fifo)
            # A child of each command outlives it where it can; who holds the fifo is alive.
            process = start_lab("--rate", "1gbit", command=shell(f'exec 3>"{fifo}"; (setsid sleep 1000 &); readlink /proc/self/ns/net >&3; sleep 1000'))
            with open(fifo) as living:
                networks = {living.readline().strip() for _ in range(2)}
                self.assertEqual(self.seen_from_outside(), before)
                self.assertFalse(any(is_gone(network) for network in networks))
                process.kill()
                process.communicate(timeout=DEADLINE_S)
                ended, _, _ = select.select([living], [], [], DEADLINE_S)
                self.assertTrue(ended, "processes outlive the lab")  # the end of the fifo comes when the last one has died
        self.assertEqual(len(networks), 2)
        wait_until(lambda: all(is_gone(network) for network in networks))
        self.assertEqual(self.seen_from_outside(), before)
        self.assertEqual(lab("--rate", "1gbit", command=["true"]).returncode, 0)

    def test_two_labs_at_once_do_not_meet(self):
        slow, fast = [start_lab("--rate", rate, command=[TRANSFER, "--seconds", 2]) for rate in ("10mbit", "100mbit")]
        (slow_rate, _), (fast_rate, _) = [rates_of(process.communicate(timeout=DEADLINE_S)[0]) for process in (slow, fast)]
        self.assertEqual((slow.returncode, fast.returncode), (0, 0))
        self.assertGreater(fast_rate, 2 * slow_rate)

    def test_without_the_rights_of_root_too(self):
        limited = ["setpriv", "--bounding-set=-sys_admin"] if os.geteuid() == 0 else []
        if subprocess.run([*limited, "unshare", "--user", "true"], capture_output=True).returncode != 0:
            self.skipTest("users may not make namespaces here")
        result = lab("--rate", "1gbit", command=["hostname"], prefix=limited)
        self.assertEqual((result.returncode, result.stdout), (0, "host0\n"), result.stderr)


def rates_of(stdout):
    """bits per second, one for each host."""
    return [float(rate) * 1e6 for rate in re.findall(r"host\d -> host\d: ([\d.]+) Mbit/s", stdout)]


class Rate(unittest.TestCase):
    def errors(self, hosts, rate):
        """Of every link, relative to what it can carry."""
        result = lab("--hosts", hosts, "--rate", rate, command=[TRANSFER, "--seconds", 3])
        carried = rates_of(result.stdout)
        self.assertEqual(len(carried), hosts, result.stderr)
        return [each / (float(rate.removesuffix("mbit")) * 1e6 * PAYLOAD) - 1 for each in carried]

    def test_every_link_carries_its_rate(self):
        for hosts in (2, 4):
            for _ in range(3):  # a machine that is busy carries less, and then what has waited
                errors = self.errors(hosts, "50mbit")
                if max(map(abs, errors)) < TOLERANCE:
                    break
            self.assertLess(max(map(abs, errors)), TOLERANCE, f"{hosts} hosts")

    def test_a_rate_for_each_host(self):
        for _ in range(3):  # as above
            result = lab("--hosts", 3, "--rate", "50mbit,15mbit,50mbit", command=[TRANSFER, "--seconds", 5])
            slow_in, between_fast = rates_of(result.stdout)[1], rates_of(result.stdout)[0]  # host 0 -> 1, and 2 -> 0
            if abs(slow_in / (15e6 * PAYLOAD) - 1) < TOLERANCE and abs(between_fast / (50e6 * PAYLOAD) - 1) < TOLERANCE:
                break
        self.assertLess(abs(slow_in / (15e6 * PAYLOAD) - 1), TOLERANCE, result.stdout)
        self.assertLess(abs(between_fast / (50e6 * PAYLOAD) - 1), TOLERANCE, result.stdout)

    def test_two_that_send_to_one_share_its_link(self):
        result = lab("--hosts", 3, "--rate", "50mbit", command=[sys.executable, "-c", INCAST])
        self.assertEqual(result.returncode, 0, result.stderr)
        burst = 256 * 1024  # passes at once, before the limit
        self.assertGreater(float(result.stdout), 8 * (2_000_000 - burst) / 50e6)
