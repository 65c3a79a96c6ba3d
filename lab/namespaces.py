"""Linux namespaces, through libc: Python itself has unshare() and setns() only from 3.12 on.

A lab gives no name to anything. Its processes, networks and mounts belong to namespaces that exist only as long as its first process does, and
that one dies with the command that the user started, however that ends: the kernel takes everything away, so there is nothing to clean up.
"""

import contextlib
import ctypes
import os
import signal
import sys
import traceback

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x04000000, 0x10000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

libc = ctypes.CDLL(None, use_errno=True)


class LabError(Exception):
    """A lab that cannot be had as asked for: bad flags, or a machine that does not allow it. One line."""


def call(function, *arguments):
    """A function of libc; raises OSError with its errno."""
    if getattr(libc, function)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{function}: {os.strerror(error)}")


def mount(source, target, kind, flags=0):
    call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


@contextlib.contextmanager
def inside(network):
    """What is started meanwhile belongs to this network namespace, a file descriptor."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    call("setns", network, CLONE_NEWNET)
    try:
        yield
    finally:
        call("setns", own, CLONE_NEWNET)
        os.close(own)


def new_network():
    """A network namespace without any link, as a file descriptor."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    call("unshare", CLONE_NEWNET)
    network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    call("setns", own, CLONE_NEWNET)
    os.close(own)
    return network


def run_isolated(body):
    """Runs body() as the first process of namespaces of its own (processes, networks, mounts) and returns its exit code.

    Root needs CAP_SYS_ADMIN; others need a kernel that lets them make user namespaces, and are root inside. When the first process ends, the
    kernel kills all that it left. SIGINT, SIGTERM and SIGHUP to the calling process are passed on to it; body() begins with them blocked, and
    unblocks them. A LabError in body() is one line and exit code 2; that namespaces cannot be had is a LabError here.
    """
    leave_namespaces()
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)  # none may come before its handler
    go, ready = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(ready)
        os._exit(first_process(go, body))
    os.close(go)
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda number, _: os.kill(first, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    os.write(ready, b"g")
    code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    return code if code >= 0 else 128 - code


def first_process(go, body):
    code = 1
    try:
        follow_parent(go)
        code = body()
    except LabError as error:
        print(f"lab/run: {error}", file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def leave_namespaces():
    user, group = os.getuid(), os.getgid()
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET
    try:
        try:
            call("unshare", flags)
        except PermissionError:
            call("unshare", flags | CLONE_NEWUSER)
            for file, text in [("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")]:
                with open(f"/proc/self/{file}", "w") as out:
                    out.write(text)
        call("mount", None, b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None)
    except OSError as error:
        raise LabError(f"network namespaces cannot be made here ({error.strerror}); expected root with CAP_SYS_ADMIN, or a kernel that lets"
                       " users make namespaces (user.max_user_namespaces above 0)") from error


def follow_parent(go):
    """Dies with the parent, and takes no signals from its terminal: the parent passes them on, once."""
    os.setsid()
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not os.read(go, 1):  # the parent died before the line above
        os._exit(1)
    os.close(go)
    try:
        mount("proc", "/proc", "proc")
    except OSError as error:
        raise LabError(f"/proc cannot be mounted in a namespace here ({error.strerror}); expected no container, or a privileged one") from error


def replace_file(path, text):
    """This lab's processes see `text` in place of an existing file; all others see the file."""
    scratch = "/mnt"  # covered for a moment
    mount("tmpfs", scratch, "tmpfs")
    with open(f"{scratch}/file", "w") as file:
        file.write(text)
    mount(f"{scratch}/file", path, "", MS_BIND)
    call("umount2", scratch.encode(), 2)  # MNT_DETACH; the file stays where it is bound
