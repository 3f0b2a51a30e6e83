#!/usr/bin/env python3
"""sluice launch with a template that records what it gets: arguments, output, deaths, signals, and
that no process is left, however the launcher ends."""
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import client
import harness
from harness import E2E, wait_until

# $1 to $7 to a file of the rank; then what BODY says. Helpers record their pids, too.
TEMPLATE = """#!/bin/sh
echo "$*" > "$DIR/args-$4"
note() { echo "$1" >> "$DIR/pids"; }
note $$
sleep 1000 &
note $!
%s
"""
SLEEP = 'echo "rank $4 here"; echo "complaint" >&2; printf "no end"; touch "$DIR/up-$4"; sleep 1000'
DOCUMENTS = ["--dp-size", 32, "--tp-size", 2, "--dp-size-local", 4, "--dp-rank-start", 16,
             "--dp-address", "192.0.0.3", "--dp-rpc-port", 12321]


def alive(pid):
    """Whether the process runs; one that nobody has reaped does not."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
        return f.read().rpartition(")")[2].split()[0] not in "ZX"
    return False


class Launch(E2E):
    def setUp(self):
        self.dir = self.enterContext(tempfile.TemporaryDirectory())
        self.port = 0
        while not self.port:  # four in a row
            first = harness.free_ports(1)[0]
            if first + 3 < 65536 and not any(harness.port_taken(first + i) for i in range(4)):
                self.port = first
        self.child = None

    def tearDown(self):
        if self.child and self.child.poll() is None:
            self.child.kill()
            self.child.communicate()
        for pid in self.pids():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def launch(self, body, args=None, mode=0o755, name="run_dp_template.sh"):
        self.write(name, TEMPLATE % body, mode)
        return self.start(args or [*DOCUMENTS, "--vllm-start-port", self.port])

    def write(self, name, text, mode=0o755):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(path, mode)
        return path

    def start(self, args):
        self.child = subprocess.Popen(
            [harness.Config.sluice, "launch", *map(str, args)], cwd=self.dir, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "DIR": self.dir, "PATH": self.dir + os.pathsep + os.environ["PATH"]},
            preexec_fn=harness.die_with_parent)
        return self.child

    def up(self, ranks):
        wait_until("all ranks up", 10, lambda: all(
            os.path.exists(os.path.join(self.dir, f"up-{r}")) for r in ranks))

    def end(self, timeout=10):
        """Its whole output, when everybody who could write has gone."""
        out, err = self.child.communicate(timeout=timeout * harness.Config.slow)
        if found := harness.SANITIZER.search(err):
            self.fail(found[0] + "\n" + err)
        return out, err

    def pids(self):
        with contextlib.suppress(OSError), open(os.path.join(self.dir, "pids"), encoding="ascii") as f:
            return [int(line) for line in f]
        return []

    def nothing_left(self, seconds=0.0):
        pids = self.pids()
        self.assertGreaterEqual(len(pids), 2)
        wait_until("no process left", seconds, lambda: not any(map(alive, pids)))

    def read(self, name):
        with open(os.path.join(self.dir, name), encoding="utf-8") as f:
            return f.read()

    def test_arguments_and_output(self):
        self.launch(SLEEP)
        self.up(range(16, 20))
        self.child.send_signal(signal.SIGTERM)
        out, err = self.end()
        self.assertEqual(self.child.returncode, 0, err)
        for i in range(4):
            self.assertEqual(self.read(f"args-{16 + i}").split(),
                             [f"{2 * i},{2 * i + 1}", str(self.port + i), "32", str(16 + i), "192.0.0.3",
                              "12321", "2"])
            mine = [line for line in out.splitlines() if line.startswith(f"[rank {16 + i}] ")]
            self.assertEqual(mine, [f"[rank {16 + i}] rank {16 + i} here", f"[rank {16 + i}] no end"])
            self.assertEqual(err.splitlines().count(f"[rank {16 + i}] complaint"), 1)
        self.assertEqual(len(out.splitlines()), 8)
        self.nothing_left()

    def test_documents(self):
        """The documents' template and command lines as they stand, with a vllm that says what it got."""
        with open(harness.shared("deployments", "a3-launch.sh"), encoding="utf-8") as f:
            lines = [line.split()[2:] for line in f if line.startswith("python launch_online_dp.py ")]
        self.assertEqual(len(lines), 2)
        shutil.copy(harness.shared("deployments", "a2-run_dp_template.sh"),
                    os.path.join(self.dir, "run_dp_template.sh"))
        self.write("vllm", '#!/bin/sh\necho $$ >> "$DIR/pids"; echo "$ASCEND_RT_VISIBLE_DEVICES $*"; '
                   'touch "$DIR/up-${10}"; exec sleep 1000\n')
        for node, args in enumerate(lines):
            self.start(args)
            self.up(range(16 * node, 16 * node + 16))  # ${10}: what follows --data-parallel-rank
            self.child.send_signal(signal.SIGTERM)
            out = self.end()[0].splitlines()
            self.assertEqual(self.child.returncode, 0)
            for i in range(16):
                rank = 16 * node + i
                said = next(line for line in out if line.startswith(f"[rank {rank}] "))
                self.assertIn(f" {i} serve /mnt/weight/DeepSeek-V3.1-w8a8 --host 0.0.0.0 --port {7100 + i} "
                              f"--data-parallel-size 32 --data-parallel-rank {rank} --data-parallel-address "
                              "192.0.0.3 --data-parallel-rpc-port 12321 --tensor-parallel-size 1 ", said)
            self.nothing_left()

    def test_log_dir(self):
        self.launch(SLEEP, ["--dp-size", 2, "--dp-address", "127.0.0.1", "--vllm-start-port", self.port,
                            "--log-dir", "logs"])
        self.up(range(2))
        self.child.send_signal(signal.SIGINT)
        self.end()
        self.assertEqual(self.child.returncode, 0)
        for rank in range(2):
            lines = self.read(f"logs/rank-{rank}.log").splitlines()
            self.assertEqual(sorted(lines), ["complaint", "no end", f"rank {rank} here"])

    def test_not_executable(self):
        """The reference gives any template to bash."""
        self.launch("x=(a b); echo ${x[1]}; " + SLEEP, mode=0o644)
        self.up(range(16, 20))
        self.child.send_signal(signal.SIGTERM)
        self.assertIn("[rank 17] b", self.end()[0].splitlines())

    def test_role_and_first_device(self):
        self.launch(SLEEP, ["--dp-size", 1, "--dp-address", "h", "--vllm-start-port", self.port,
                            "--dp-deploy-role", "decode", "--local-dp-start-rank", 5],
                    name="run_dp_template_d.sh")
        self.up([0])
        self.child.send_signal(signal.SIGTERM)
        self.end()
        self.assertEqual(self.read("args-0").split(), ["5", str(self.port), "1", "0", "h", "12345", "1"])

    def test_one_dies(self):
        """Named with its status, after its last words; the others end within seconds."""
        body = 'if [ $4 = 17 ]; then sleep 0.5; echo "last words" >&2; exit 7; fi; ' + SLEEP
        began = time.monotonic()
        self.launch(body)
        _, err = self.end(5)
        self.assertLess(time.monotonic() - began, 5 * harness.Config.slow)
        self.assertEqual(self.child.returncode, 7)
        self.assertRegex(err, r"\[rank 17\] last words\n.*rank 17 \(pid \d+\) ended with status 7")
        self.nothing_left()

    def test_one_is_killed(self):
        self.launch(SLEEP)
        self.up(range(16, 20))
        os.kill(self.pids()[0], signal.SIGKILL)
        _, err = self.end(5)
        self.assertEqual(self.child.returncode, 128 + signal.SIGKILL)
        self.assertIn("was ended by signal 9", err)
        self.nothing_left()

    def test_ends_by_itself(self):
        """Even a rank that ends with 0 was not asked to."""
        self.launch("exit 0")
        _, err = self.end(5)
        self.assertEqual(self.child.returncode, 1)
        self.assertIn("ended with status 0", err)
        self.nothing_left()

    def test_keep_going(self):
        self.launch("if [ $4 = 17 ]; then exit 7; fi; " + SLEEP,
                    [*DOCUMENTS, "--vllm-start-port", self.port, "--keep-going"])
        self.up([16, 18, 19])
        time.sleep(0.5)
        self.assertIsNone(self.child.poll())
        self.child.send_signal(signal.SIGTERM)
        _, err = self.end()
        self.assertEqual(self.child.returncode, 7)
        self.assertIn("ended with status 7; the others go on", err)
        self.nothing_left()

    def test_child_of_a_shell(self):
        """The shell dies of SIGTERM at once; its server tidies up for a while, and is waited for. Its
        status counts."""
        server = self.write("server.sh", 'trap \'kill $!; sleep 0.5; echo "$1 tidy"; exit $2\' TERM\n'
                            'touch "$DIR/up-$1"; sleep 1000 & wait\n')
        for status in (0, 9):
            for name in os.listdir(self.dir):
                if name.startswith("up-"):
                    os.remove(os.path.join(self.dir, name))
            self.launch(f"bash {server} $4 {status}; true")
            self.up(range(16, 20))
            self.child.send_signal(signal.SIGTERM)
            out, err = self.end()
            self.assertEqual(out.count("tidy"), 4, err)
            self.assertEqual(self.child.returncode, status, err)
            self.nothing_left()

    def test_deaf(self):
        """What does not heed SIGTERM is killed when its time is over."""
        self.launch('trap "" TERM; ' + SLEEP,
                    [*DOCUMENTS, "--vllm-start-port", self.port, "--shutdown-timeout", 0.5])
        self.up(range(16, 20))
        began = time.monotonic()
        self.child.send_signal(signal.SIGTERM)
        _, err = self.end()
        self.assertGreater(time.monotonic() - began, 0.45)
        self.assertEqual(self.child.returncode, 128 + signal.SIGKILL)
        self.assertIn("rank 18 has not ended; killing it", err)
        self.nothing_left()

    def test_second_signal(self):
        self.launch('trap "" TERM; ' + SLEEP)
        self.up(range(16, 20))
        self.child.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        self.assertIsNone(self.child.poll())
        began = time.monotonic()
        self.child.send_signal(signal.SIGINT)
        self.end()
        self.assertLess(time.monotonic() - began, 2 * harness.Config.slow)
        self.assertEqual(self.child.returncode, 128 + signal.SIGINT)
        self.nothing_left()

    def test_own_group(self):
        """A process that has left its rank's group ends, too."""
        self.launch('setsid sh -c \'trap "" HUP; echo $$ >> "$DIR/pids"; sleep 1000\' & ' + SLEEP)
        self.up(range(16, 20))
        wait_until("all have told", 5, lambda: len(self.pids()) == 12)
        self.child.send_signal(signal.SIGTERM)
        self.end()
        self.assertEqual(self.child.returncode, 0)
        self.nothing_left()

    def test_launcher_killed(self):
        """kill -9: the shells and what they have started are gone at once."""
        self.launch('trap "" TERM HUP INT; ' + SLEEP)
        self.up(range(16, 20))
        self.child.kill()
        self.end(5)  # also: nobody holds its output open
        self.nothing_left(2)

    def test_nobody_reads(self):
        """Ranks that write without end while nobody reads the launcher's output: it still obeys."""
        self.launch('touch "$DIR/up-$4"; exec yes "$4"')
        self.up(range(16, 20))
        time.sleep(0.5)
        self.child.send_signal(signal.SIGTERM)
        self.assertEqual(self.child.wait(10 * harness.Config.slow), 0)
        self.end()
        self.nothing_left()

    def test_reader_leaves(self):
        """As with `| head`: the ranks go on."""
        self.launch('touch "$DIR/up-$4"; while sleep 0.05; do echo x; done')
        self.up(range(16, 20))
        self.child.stdout.close()
        time.sleep(0.5)
        self.assertIsNone(self.child.poll())
        self.child.send_signal(signal.SIGTERM)
        self.assertEqual(self.child.wait(10), 0)
        self.child.stderr.close()
        self.nothing_left()

    def test_asleep(self):
        """Ranks that say nothing cost nothing."""
        self.launch(SLEEP)
        self.up(range(16, 20))
        time.sleep(1)
        with open(f"/proc/{self.child.pid}/stat", encoding="utf-8") as f:
            ticks = sum(map(int, f.read().rpartition(")")[2].split()[11:13]))
        self.assertLess(ticks, 20)
        self.child.send_signal(signal.SIGTERM)
        self.end()

    def test_refused(self):
        """Nothing is started, and the flag is named."""
        rows = [(["--dp-size", 4], "--dp-address is missing"),
                (["--dp-address", "h"], "--dp-size is missing"),
                ([*DOCUMENTS, "--dp-rank-start", 30], "--dp-rank-start 30"),
                ([*DOCUMENTS, "--vllm-start-port", 65534], "last port is 65535"),
                ([*DOCUMENTS, "--vllm-start-port", 70000], "--vllm-start-port"),
                ([*DOCUMENTS, "--dp-rpc-port", 0], "--dp-rpc-port"),
                ([*DOCUMENTS, "--template", "./other.sh"], "./other.sh: No such file"),
                ([*DOCUMENTS, "--dp-sise", 3], "--dp-size"),
                ([*DOCUMENTS, "--dp-deploy-role", "both"], "prefill"),
                ([*DOCUMENTS, "stray"], "stray"),
                ([*DOCUMENTS, "--tp-size", "two"], "--tp-size")]
        for args, says in rows:
            with self.subTest(says):
                self.launch(SLEEP, args)
                _, err = self.end()
                self.assertEqual(self.child.returncode, 2, err)
                self.assertIn(says, err)
                self.assertEqual(self.pids(), [])

    def test_port_in_use(self):

        with socket.create_server(("", 0)) as s:
            port = s.getsockname()[1]
            self.launch(SLEEP, [*DOCUMENTS, "--vllm-start-port", port])
            _, err = self.end()
        self.assertEqual(self.child.returncode, 2)
        self.assertIn(f"port {port} of rank 16 is in use", err)


class Servers(E2E):
    """Two real ranks under a template as the documents have it."""

    def test_serve(self):
        with tempfile.TemporaryDirectory() as where:
            ports = harness.free_ports(1)
            path = os.path.join(where, "t.sh")
            with open(path, "w", encoding="utf-8") as f:
                f.write(f"export OMP_NUM_THREADS=1\nexport ASCEND_RT_VISIBLE_DEVICES=$1\n"
                        f"{harness.Config.sluice} serve {harness.Config.model} --host {client.HOST} "
                        f"--port $2 --served-model-name model --max-model-len 512 --num-gpu-blocks-override 64\n")
            server = harness.Server("launch", ports, ["launch", "--dp-size", 1, "--dp-address", client.HOST,
                                                      "--vllm-start-port", ports[0], "--template", path],
                                    "/health")
            with self.running(server):
                self.assertEqual(client.complete(server.port, "x", 1).status, 200)
            self.assertIn("[rank 0] ", server.text())


if __name__ == "__main__":
    harness.main()
