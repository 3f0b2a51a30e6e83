"""Starts and stops the servers of the end-to-end tests, and proves that nothing of them is left.

Each test file is a program: `python3 tests/e2e/test_pd_equal.py --build build`. Servers listen on free
loopback ports, one thread each, with their output in LOGS; they are stopped by their own pid.
"""
import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import unittest

import client

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
START_TIMEOUT, STOP_TIMEOUT, IDLE_TIMEOUT = 60, 15, 15
PORTS = 10000, 32000
MODEL_NAME = "model"
TINY = os.path.join(ROOT, "tests", "data", "golden", "models", "llama_tiny")


class Config:
    """Where things are; set once by configure()."""
    build = os.path.join(ROOT, "build")
    sluice = model = logs = None
    tiny = False       # the model is the tiny one of tests/data: fast, and makes no sense
    sanitized = False
    slow = 1.0         # waits are this much longer under a sanitizer


def add_arguments(parser):
    parser.add_argument("--build", default=Config.build, help="the build folder (default: build)")
    parser.add_argument("--model", default=os.environ.get("SLUICE_MODEL"),
                        help="default: the demo model; under a sanitizer the tiny one of tests/data")
    parser.add_argument("--logs", help="where servers' output goes (default: BUILD/test-logs/e2e)")


def configure(args):
    Config.build = os.path.abspath(args.build)
    Config.sluice = os.path.join(Config.build, "sluice")
    if not os.access(Config.sluice, os.X_OK):
        sys.exit(f"{Config.sluice} is missing: build it first (make)")
    with open(Config.sluice, "rb") as f:
        Config.sanitized = b"__asan_init" in f.read()
    Config.slow = 3.0 if Config.sanitized else 1.0
    Config.tiny = Config.sanitized and not args.model
    Config.model = args.model or (TINY if Config.tiny else demo_model())
    Config.logs = os.path.abspath(args.logs or os.path.join(Config.build, "test-logs", "e2e"))
    os.makedirs(Config.logs, exist_ok=True)


def shared(*path):
    """A file or folder of the material that lies beside the checkout; skips the test without it."""
    top = os.environ.get("SLUICE_SHARED") or os.path.join(os.path.dirname(ROOT), "shared")
    found = os.path.join(top, *path)
    if not os.path.exists(found):
        raise unittest.SkipTest(f"{found} is not there")
    return found


def demo_model():
    return subprocess.run([os.path.join(ROOT, "scripts", "model"), "--path"], stdout=subprocess.PIPE,
                          text=True, check=True).stdout.strip()


def free_ports(n):
    """n ports that were free a moment ago, all different. They are below those that the kernel gives to whoever
    does not care, or a server could have the port of one that is started after it."""
    with contextlib.ExitStack() as held:
        ports = []
        while len(ports) < n:
            s = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                s.bind((client.HOST, random.SystemRandom().randrange(*PORTS)))
                ports.append(s.getsockname()[1])
        return ports


def port_taken(port):
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex((client.HOST, port)) == 0


def die_with_parent():
    """In the child: SIGKILL when the test program goes, however it goes."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def wait_until(what, timeout, test, interval=0.02):
    """Waits for test() to be true; its last value is in the failure."""
    end = time.monotonic() + timeout * Config.slow
    while not (value := test()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout * Config.slow:g} s (last: {value!r})")
        time.sleep(interval)
    return value


SANITIZER = re.compile(r"ERROR: (Address|Leak|Thread)Sanitizer|runtime error:|SUMMARY: \w+Sanitizer")


class Server:
    """One sluice process. `ports` are all that it listens on; the first is HTTP."""
    count = 0
    prefix = ()  # a command that runs it: of another network namespace

    def __init__(self, name, ports, args, ready, env=None):
        self.name, self.ports, self.port, self.ready_path = name, ports, ports[0], ready
        self.args, self.env, self.child, self.shared_files = [str(a) for a in args], env or {}, None, set()
        Server.count += 1
        self.log = os.path.join(Config.logs, f"{Server.count:03d}-{name}.log")

    def start(self):
        env = {"OMP_NUM_THREADS": "1", **os.environ, **self.env}
        with open(self.log, "ab") as log:
            self.child = subprocess.Popen([*self.prefix, Config.sluice] + self.args, stdin=subprocess.DEVNULL,
                                          stdout=log, stderr=log, env=env, preexec_fn=die_with_parent)
        return self

    def wait_ready(self, timeout=START_TIMEOUT):
        wait_until(f"{self.name} ready ({self.log})", timeout, self.is_ready)
        self.note_shared_files()
        return self

    def is_ready(self):
        if self.child.poll() is not None:
            raise AssertionError(f"{self.name} ended with {self.child.returncode} before it was ready:\n"
                                 + self.tail())
        return self.status(self.ready_path) == 200

    def status(self, path):
        """The status of a GET; 0 when nothing answers."""
        try:
            return client.get(self.port, path, timeout=5).status
        except OSError:
            return 0

    def metrics(self):
        return client.metrics(self.port)

    def text(self):
        with open(self.log, encoding="utf-8", errors="replace") as f:
            return f.read()

    def tail(self, lines=20):
        return "\n".join(self.text().splitlines()[-lines:])

    def signal(self, number):
        self.child.send_signal(number)

    def wait_end(self, timeout=STOP_TIMEOUT):
        """For one that is to end by itself: its exit status."""
        return self.child.wait(timeout * Config.slow)

    def running(self):
        return self.child is not None and self.child.poll() is None

    def note_shared_files(self):
        """Remembers which files under /dev/shm the process has mapped."""
        with contextlib.suppress(OSError), open(f"/proc/{self.child.pid}/maps") as f:
            self.shared_files |= set(re.findall(r"(/dev/shm/\S+)(?! \(deleted\))$", f.read(), re.M))

    def kill(self):
        """kill -9: nothing is tidied up."""
        self.note_shared_files()
        self.child.kill()
        self.child.wait()

    def stop(self, timeout=STOP_TIMEOUT):
        """SIGTERM; the process must end by itself, with status 0 and no word from a sanitizer."""
        if self.child is None:
            return
        if self.running():
            self.note_shared_files()
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self.child.wait(timeout * Config.slow)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
                raise AssertionError(f"{self.name} ignored SIGTERM for {timeout} s:\n{self.tail()}")
            if self.child.returncode != 0:
                raise AssertionError(f"{self.name} ended with {self.child.returncode}:\n{self.tail()}")
        if found := SANITIZER.search(self.text()):
            raise AssertionError(f"{self.name}: {found[0]} in {self.log}:\n{self.tail(60)}")

    def resident(self):
        """Resident memory in bytes."""
        with open(f"/proc/{self.child.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def open_files(self):
        return len(os.listdir(f"/proc/{self.child.pid}/fd"))

    def usage(self):
        """What must be zero when nobody asks anything, by name."""
        m = self.metrics()
        names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "sluice:kv_leases"]
        return {name: m.get(name) for name in names if m.get(name) != 0}

    def wait_idle(self, timeout=IDLE_TIMEOUT):
        """Requests, blocks and leases back to zero."""
        wait_until(f"{self.name} idle", timeout, lambda: not self.usage() or None, 0.05)


def kv_config(role, port, extra=None, **more):
    config = {"kv_connector": "MooncakeConnectorV1", "kv_role": role, "kv_port": str(port), **more}
    if extra:
        config["kv_connector_extra_config"] = extra
    return ["--kv-transfer-config", json.dumps(config)]


BASE = ["--host", client.HOST, "--served-model-name", MODEL_NAME]
SIZE = ["--max-model-len", 2304, "--num-gpu-blocks-override", 640, "--block-size", 16]


def serve(name, args=None, role=None, kv=None, env=None, port=None, size=None, kv_port=None, model=None):
    """A `sluice serve` that is not started yet. kv: more members of the transfer configuration."""
    ports = [port or free_ports(1)[0]]
    command = ["serve", model or Config.model, *BASE, "--port", ports[0], *(size or SIZE), *(args or [])]
    if role:
        ports.append(kv_port or free_ports(1)[0])
        command += kv_config(role, ports[1], **(kv or {}))
    return Server(name, ports, command, "/health", env)


def proxy(prefills, decodes, args=None, port=None):
    port = port or free_ports(1)[0]
    command = ["proxy", "--host", client.HOST, "--port", port,
               "--prefiller-hosts", *[client.HOST] * len(prefills),
               "--prefiller-ports", *[p.port for p in prefills],
               "--decoder-hosts", *[client.HOST] * len(decodes),
               "--decoder-ports", *[d.port for d in decodes],
               "--health-check-interval", 0.25, *(args or [])]
    return Server("proxy", [port], command, "/healthcheck")


class Fleet:
    """Servers that start together, and are checked and stopped together."""

    def __init__(self, *servers):
        self.servers = list(servers)

    def add(self, server):
        self.servers.append(server)
        return server

    def start(self):
        try:
            for s in self.servers:
                s.start()
            for s in self.servers:
                s.wait_ready()
        except BaseException:
            self.abandon()
            raise
        return self

    def abandon(self):
        for s in self.servers:
            if s.running():
                s.kill()

    def instances(self):
        return [s for s in self.servers if s.name != "proxy" and s.running()]

    def wait_idle(self, timeout=IDLE_TIMEOUT):
        for s in self.instances():
            s.wait_idle(timeout)

    def stop(self):
        """Stops all; then no port listens and no shared memory file is left."""
        problems = []
        for s in self.servers[::-1]:
            try:
                s.stop()
            except AssertionError as e:
                problems.append(str(e))
        for s in self.servers:
            problems += [f"{s.name}: port {p} still listens" for p in s.ports if port_taken(p)]
            problems += [f"{s.name}: {f} is left" for f in s.shared_files if os.path.exists(f)]
        if problems:
            raise AssertionError("\n".join(problems))


def deployment(n_decode=1, p_args=None, d_args=None, p_size=None, d_size=None, p_kv=None, d_kv=None,
               proxy_args=None, env=None, model=None):
    """P, n_decode D and the proxy in front; started. Also as .p, .ds, .d, .proxy."""
    p = serve("P", p_args, "kv_producer", p_kv, env, size=p_size, model=model)
    ds = [serve(f"D{i + 1}", d_args, "kv_consumer", d_kv, env, size=d_size, model=model)
          for i in range(n_decode)]
    fleet = Fleet(p, *ds).start()
    fleet.p, fleet.ds, fleet.d = p, ds, ds[0]
    fleet.proxy = fleet.add(proxy([p], ds, proxy_args))
    try:
        fleet.proxy.start().wait_ready()
    except BaseException:
        fleet.abandon()
        raise
    return fleet


class E2E(unittest.TestCase):
    """A test whose servers are started once for the class: setUpFleet() returns them."""
    maxDiff = 2000
    fleet = None

    @classmethod
    def setUpFleet(cls):
        return Fleet()

    @classmethod
    def setUpClass(cls):
        cls.fleet = cls.setUpFleet()

    @classmethod
    def tearDownClass(cls):
        cls.fleet.stop()

    @contextlib.contextmanager
    def running(self, *servers):
        """Servers for one test only."""
        fleet = Fleet(*servers).start()
        try:
            yield servers[0] if len(servers) == 1 else servers
        except BaseException:
            fleet.abandon()
            raise
        fleet.stop()

    def expect(self, reply, status, param=None):
        """An error reply in OpenAI's shape (or a 200), with that status and parameter."""
        self.assertEqual(reply.status, status, reply)
        if status >= 400:
            error = reply.json()["error"]
            self.assertLessEqual({"message", "type", "param", "code"}, set(error), reply)
            self.assertEqual(error["code"], status, reply)
            self.assertTrue(error["message"], reply)
            if param:
                self.assertEqual(error["param"], param, reply)


def main():
    """For a test file that is run by itself: --build, --model, --logs, then unittest's arguments."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    args, rest = parser.parse_known_args()
    configure(args)
    unittest.main(argv=[sys.argv[0], "-v", *rest])
