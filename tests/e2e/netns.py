"""Another host on this one: a network namespace that has nothing but a cable, a pair of veth, in common with us."""
import contextlib
import ctypes
import os
import subprocess
import unittest

CLONE_NEWNET = 0x40000000
HERE, THERE = "10.231.77.1", "10.231.77.2"


def run(*words):
    return subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)


class OtherHost:
    """Made at once, or the test is skipped. `here` and `there` are the two ends of the cable."""

    def __init__(self):
        tag = os.getpid() % 100000
        self.space, self.here, self.there = f"sluice{tag}", f"sl{tag}a", f"sl{tag}b"
        try:
            self.ip("netns", "add", self.space)
            self.ip("link", "add", self.here, "type", "veth", "peer", "name", self.there, "netns", self.space)
            self.ip("addr", "add", f"{HERE}/24", "dev", self.here)
            self.ip("-n", self.space, "addr", "add", f"{THERE}/24", "dev", self.there)
            self.ip("link", "set", self.here, "up")
            self.ip("-n", self.space, "link", "set", self.there, "up")
            self.ip("-n", self.space, "link", "set", "lo", "up")
        except BaseException:
            self.remove()
            raise

    def ip(self, *words):
        self.must("ip", *words)

    @staticmethod
    def must(*words):
        done = run(*words)
        if done.returncode != 0:
            raise unittest.SkipTest(f"{' '.join(map(str, words))}: {done.stdout.strip()}")

    def remove(self):
        run("ip", "link", "del", self.here)
        run("ip", "netns", "del", self.space)

    def prefix(self):
        """What a command there begins with."""
        return ["ip", "netns", "exec", self.space]

    @contextlib.contextmanager
    def inside(self):
        """This thread's new sockets are that host's meanwhile."""
        libc = ctypes.CDLL(None, use_errno=True)

        def enter(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(fd, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"setns {path}")
            finally:
                os.close(fd)

        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            enter(f"/run/netns/{self.space}")
            try:
                yield
            finally:
                enter(f"/proc/self/fd/{home}")
        finally:
            os.close(home)

    def cut(self):
        run("ip", "link", "set", self.here, "down")

    def mend(self):
        self.ip("link", "set", self.here, "up")

    def slow_down(self, rate):
        """What comes from there is held to `rate`."""
        self.must(*self.prefix(), "tc", "qdisc", "add", "dev", self.there, "root", "tbf", "rate", rate,
                  "burst", "64kb", "latency", "200ms")

    def received(self):
        """Bytes that have come from there."""
        with open(f"/sys/class/net/{self.here}/statistics/rx_bytes", encoding="ascii") as f:
            return int(f.read())
