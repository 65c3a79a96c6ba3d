"""The hosts of a lab: network namespaces, each with one link to a switch, limited in both directions as the port of a real switch is.

Rates: tc's token bucket (tbf) at both ends of each link. netem would space packets as a wire does, without any burst, but many kernels lack it, and tbf
is exact over more than its burst. A packet here is a segment of TCP's offload, up to 64 KB; with a burst of one or two of these tbf loses packets and rate.
Latency: netem, one way, at the switch's end of the link, where it limits the rate as well.
"""

import dataclasses
import os
import re
import shutil
import subprocess

from namespaces import LabError, inside, new_network, replace_file

INTERFACE = "lab0"  # on every host; a name that no real interface has, since /sys still shows those
MOST_HOSTS = 4
QUEUE = "100ms"  # what a limited link holds before it drops: time at its rate
DELAY_QUEUE = "1000000"  # packets; a link that delays must not drop what is on its way


@dataclasses.dataclass(frozen=True)
class Link:
    rate: str | None  # as tc writes it: 1gbit
    latency: str | None
    burst: str


@dataclasses.dataclass(frozen=True)
class Host:
    index: int
    network: int  # file descriptor of its namespace

    @property
    def name(self):
        return f"host{self.index}"

    @property
    def address(self):
        return f"10.77.0.{self.index + 1}"


def checked_links(hosts, rate, latency, burst):
    """One link for each host; rate: of all, or one for each, separated by commas. Raises LabError as checked_link() does."""
    rates = [None] if rate is None else rate.split(",")
    if len(rates) not in (1, hosts):
        raise LabError(f"--rate {rate}: expected one rate, or one for each of {hosts} hosts")
    links = [checked_link(each, latency, burst) for each in rates]
    return links if len(links) == hosts else links * hosts


def checked_link(rate, latency, burst):
    """Raises LabError for what tc would not understand, or would understand otherwise than firkin's --link."""
    for flag, text, pattern, expected in [
        ("--rate", rate, r"\d+(\.\d+)?[kmgt]?bit", "a rate such as 1gbit or 200mbit"),
        ("--latency", latency, r"\d+(\.\d+)?(us|ms|s)", "a time such as 50us or 1ms"),
        ("--burst", burst, r"\d+(\.\d+)?[km]?b", "a size such as 256kb"),
    ]:
        if text is not None and (not re.fullmatch(pattern, text) or not re.search("[1-9]", text)):
            raise LabError(f"{flag} {text}: expected {expected}")
    return Link(rate, latency, burst)


def search_path():
    """Debian's users have no sbin in theirs."""
    return os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def run(command, **options):
    """One command line of ip or tc."""
    tool = command.split()[0]
    if not shutil.which(tool, path=search_path()):
        raise LabError(f"no '{tool}' in PATH; expected Debian's package iproute2")
    result = subprocess.run(command.split(), capture_output=True, text=True, env=os.environ | {"PATH": search_path()}, **options)
    if result.returncode != 0:
        said = (result.stderr or result.stdout).strip().splitlines() or ["no reason given"]
        raise LabError(f"'{command}' failed: {said[0]}")


def limit(interface, link):
    if link.rate:
        run(f"tc qdisc add dev {interface} root tbf rate {link.rate} burst {link.burst} latency {QUEUE}")


def limit_switch_port(port, link):
    if not link.latency:
        return limit(port, link)
    rate = f" rate {link.rate}" if link.rate else ""
    try:
        run(f"tc qdisc add dev {port} root netem delay {link.latency}{rate} limit {DELAY_QUEUE}")
    except LabError as error:
        raise LabError(f"--latency {link.latency}: expected a kernel with netem (CONFIG_NET_SCH_NETEM): {error}") from error


def make_hosts(links):
    """Hosts with these links: 10.77.0.1 and on, named host0 and on, behind a switch in the calling process's own network namespace."""
    run("ip link add switch type bridge")
    run("ip link set switch up")
    hosts = [Host(index, new_network()) for index in range(len(links))]
    for host, link in zip(hosts, links):
        port = f"port{host.index}"
        run(f"ip link add {port} type veth peer name {INTERFACE} netns /proc/self/fd/{host.network}", pass_fds=[host.network])
        run(f"ip link set {port} master switch up")
        limit_switch_port(port, link)
        with inside(host.network):
            run("ip link set lo up")
            run(f"ip address add {host.address}/24 dev {INTERFACE}")
            run(f"ip link set {INTERFACE} up")
            limit(INTERFACE, link)
    # torchrun and c10d look their peers up by number as well, which they see as IPv4 in IPv6.
    names = [f"{address} {host.name}\n" for host in hosts for address in (host.address, f"::ffff:{host.address}")]
    replace_file("/etc/hosts", "127.0.0.1 localhost\n" + "".join(names))
    return hosts
