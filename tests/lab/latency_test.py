"""--latency, where the kernel has netem."""

import sys
import unittest

from labs import lab, skip_without_hosts

# Host 1 connects to host 0, which takes one round trip, and prints the seconds of the quickest of five.
CONNECT = """
import os, socket, time
if os.environ["RANK"] == "0":
    server = socket.create_server(("", 5001))
    server.settimeout(60)
    for _ in range(5):
        server.accept()
else:
    times = []
    while len(times) < 5:
        begin = time.monotonic()
        try:
            socket.create_connection(("host0", 5001))
        except ConnectionRefusedError:
            continue
        times.append(time.monotonic() - begin)
    print(min(times))
"""


def setUpModule():  # unittest's name
    skip_without_hosts("--latency", "1ms")


class Latency(unittest.TestCase):
    def test_a_round_trip_takes_twice_the_latency(self):
        for options in ([], ["--rate", "100mbit"]):
            result = lab("--latency", "20ms", *options, command=[sys.executable, "-c", CONNECT])
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertGreaterEqual(float(result.stderr.split("[host1] ")[1]), 0.04)
