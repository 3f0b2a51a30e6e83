"""Starting, stopping, draining and watching: what a supervisor and a dashboard see."""
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import client
import harness
from harness import E2E, wait_until

STORY = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "return_token_ids": True}
METRICS = [
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total", "vllm:request_success_total", "vllm:num_preemptions_total",
    "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_count", "vllm:request_time_per_output_token_seconds_count",
    "vllm:request_queue_time_seconds_count", "vllm:request_prefill_time_seconds_count",
    "vllm:request_decode_time_seconds_count", "vllm:request_inference_time_seconds_count",
    "vllm:request_prompt_tokens_count", "vllm:request_generation_tokens_count",
    "vllm:iteration_tokens_total_count", "vllm:cache_config_info",
]


def run_to_end(args, timeout=20):
    """A sluice that should end by itself: status, all it said, seconds."""
    began = time.monotonic()
    done = subprocess.run([harness.Config.sluice, *map(str, args)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=timeout * harness.Config.slow)
    return done.returncode, done.stdout, time.monotonic() - began


class Starting(E2E):
    def test_log_line_that_scripts_wait_for(self):
        with self.running(harness.serve("plain")) as server:
            self.assertIn("Application startup complete.", server.text())

    def test_health_only_when_ready(self):
        """No 200 before the server can answer a request."""
        server = harness.serve("plain")
        server.start()
        wait_until("health", 60, lambda: server.status("/health") == 200, 0.001)
        self.assertEqual(client.complete(server.port, "x", 1).status, 200)
        server.stop()

    def test_taken_port(self):
        with socket.socket() as taken:
            taken.bind((client.HOST, 0))
            taken.listen()
            port = taken.getsockname()[1]
            status, said, seconds = run_to_end(["serve", harness.Config.model, *harness.BASE, "--port", port,
                                                *harness.SIZE])
        self.assertNotEqual(status, 0)
        self.assertIn(str(port), said)
        self.assertLess(seconds, 5 * harness.Config.slow)

    def test_taken_kv_port(self):
        with socket.socket() as taken:
            taken.bind((client.HOST, 0))
            taken.listen()
            port = taken.getsockname()[1]
            status, said, _ = run_to_end(["serve", harness.Config.model, *harness.BASE, "--port",
                                          harness.free_ports(1)[0], *harness.SIZE,
                                          *harness.kv_config("kv_producer", port)])
        self.assertNotEqual(status, 0)
        self.assertIn(str(port), said)

    def test_unknown_flag(self):
        status, said, _ = run_to_end(["serve", harness.Config.model, "--max-model-length", 5])
        self.assertNotEqual(status, 0)
        self.assertIn("--max-model-len", said)

    def test_en_dash(self):
        status, said, _ = run_to_end(["serve", harness.Config.model, "\u2013port", 5])
        self.assertNotEqual(status, 0)
        self.assertIn("dash", said)

    def test_no_such_model(self):
        status, said, _ = run_to_end(["serve", "/no/such/model.gguf"])
        self.assertNotEqual(status, 0)
        self.assertIn("/no/such/model.gguf", said)

    def test_flag_without_effect(self):
        with self.running(harness.serve("plain", ["--enforce-eager", "--trust-remote-code"])) as server:
            self.assertIn("--enforce-eager", server.text())


def count_tokens(events):
    return sum(len(c["token_ids"] or []) for e in events for c in e["choices"])


# Tokens take their time, so that a signal comes between two of them.
SLOW = ["--step-delay", 0.005]


class Stopping(E2E):
    def stream(self, server, n):
        """Starts a stream and reads five events of it: the stream, what was read, the rest."""
        stream = client.Stream(server.port, "/v1/completions", {**STORY, "max_tokens": n})
        events = iter(stream)
        return stream, [next(events) for _ in range(5)], events

    def test_drain(self):
        """SIGTERM with --shutdown-timeout: the answer is finished, new requests are turned away."""
        server = harness.serve("plain", ["--shutdown-timeout", 20, *SLOW])
        server.start().wait_ready()
        stream, read, events = self.stream(server, 150)
        server.signal(signal.SIGTERM)
        wait_until("not ready any more", 2, lambda: server.status("/health") != 200, 0.005)
        try:
            self.assertEqual(client.complete(server.port, "x", 1, timeout=5).status, 503)
        except ConnectionError:
            pass  # not listening any more is as clear
        self.assertEqual(count_tokens(read + list(events)), 150)
        self.assertTrue(stream.done)
        self.assertEqual(server.child.wait(10), 0)
        server.stop()

    def test_no_time_to_drain(self):
        """Past the timeout (default 0) the stream ends with an error event, not as if it were whole."""
        server = harness.serve("plain", SLOW)
        server.start().wait_ready()
        stream, _, events = self.stream(server, 2000)
        server.signal(signal.SIGTERM)
        rest = list(events)
        self.assertFalse(stream.done)
        self.assertIn("error", rest[-1])
        self.assertEqual(server.child.wait(5 * harness.Config.slow), 0)
        server.stop()

    def test_second_signal(self):
        server = harness.serve("plain", ["--shutdown-timeout", 60, *SLOW])
        server.start().wait_ready()
        self.stream(server, 2000)
        server.signal(signal.SIGTERM)
        wait_until("draining", 2, lambda: server.status("/health") != 200, 0.005)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        server.child.wait(10)
        self.assertLess(time.monotonic() - began, 3 * harness.Config.slow)

    def test_same_port_at_once(self):
        """kill -9 and start again on the same port: ready each time."""
        server = harness.serve("P", role="kv_producer")
        for _ in range(5):
            server.start().wait_ready()
            self.assertEqual(client.complete(server.port, "x", 1).status, 200)
            server.kill()
        self.assertEqual([f for f in server.shared_files if os.path.exists(f)], [])

    def test_d_drains(self):
        """D asked to stop while it streams what P prefilled: the client gets all of it."""
        fleet = harness.deployment(d_args=["--shutdown-timeout", 20, *SLOW])
        try:
            stream, read, events = self.stream(fleet.proxy, 100)
            fleet.d.signal(signal.SIGTERM)
            self.assertEqual(count_tokens(read + list(events)), 100)
            self.assertTrue(stream.done)
            self.assertEqual(fleet.d.child.wait(10), 0)
            fleet.p.wait_idle()
        except BaseException:
            fleet.abandon()
            raise
        fleet.stop()


class Watching(E2E):
    @classmethod
    def setUpFleet(cls):
        cls.plain = harness.serve("plain", ["--max-body-size", 8 << 20])
        return harness.Fleet(cls.plain).start()

    def test_names_and_labels(self):
        client.complete(self.plain.port, "x", 3)
        m = self.plain.metrics()
        for name in METRICS:
            self.assertTrue(m.has(name), name)
            if name.startswith("vllm:"):
                for labels in m.labels(name):
                    self.assertEqual(labels.get("engine"), "0", name)
        self.assertEqual(m.labels("vllm:num_requests_running")[0]["model_name"], harness.MODEL_NAME)
        info = m.labels("vllm:cache_config_info")[0]
        self.assertEqual((info["block_size"], info["num_gpu_blocks"]), ("16", "640"))

    def test_counts_equal_requests(self):
        self.plain.wait_idle()
        before = self.plain.metrics()
        for i in range(5):
            client.complete(self.plain.port, [100 + i] * 10, 4)
        self.plain.wait_idle()
        after = self.plain.metrics()
        def grown(name, **labels):
            return after.get(name, **labels) - before.get(name, **labels)
        self.assertEqual(grown("vllm:request_success_total", finished_reason="length"), 5)
        self.assertEqual(grown("vllm:prompt_tokens_total"), 50)
        self.assertEqual(grown("vllm:generation_tokens_total"), 20)
        for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
            self.assertEqual(grown(f"vllm:{name}_seconds_count"), 5, name)
        self.assertEqual(grown("vllm:inter_token_latency_seconds_count"), 15)

    def test_abort_storm(self):
        """Fifty clients hang up at once: the gauges are right within a second."""
        before = self.plain.metrics().get("vllm:request_success_total", finished_reason="abort")
        socks = [client.send_only(self.plain.port, "/v1/completions", {**STORY, "max_tokens": 2000})
                 for _ in range(50)]
        def arrived():
            m = self.plain.metrics()
            return m.get("vllm:num_requests_running") + m.get("vllm:num_requests_waiting") == 50
        wait_until("all fifty arrived", 10, arrived)
        for s in socks:
            s.close()
        wait_until("gauges at zero", 1, lambda: not self.plain.usage() or None)
        after = self.plain.metrics().get("vllm:request_success_total", finished_reason="abort")
        self.assertEqual(after - before, 50)
        self.assertEqual(client.complete(self.plain.port, "x", 1).status, 200)

    def test_http(self):
        for path, status in (("/health", 200), ("/version", 200), ("/v1/models", 200), ("/metrics", 200)):
            self.assertEqual(client.get(self.plain.port, path).status, status, path)
        self.assertEqual(client.request(self.plain.port, "HEAD", "/metrics").status, 200)
        model = client.get(self.plain.port, "/v1/models").json()["data"][0]
        self.assertEqual((model["id"], model["max_model_len"]), (harness.MODEL_NAME, 2304))
        self.assertEqual(client.get(self.plain.port, f"/v1/models/{harness.MODEL_NAME}").status, 200)

    def test_large_bodies(self):
        """1 MiB in small pieces is read whole (and is too long for the context); 9 MiB is too large."""
        body = b'{"prompt":"' + b"x " * (1 << 19) + b'","max_tokens":1}'
        with socket.create_connection((client.HOST, self.plain.port), timeout=30) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body))
            for at in range(0, len(body), 4000):
                s.sendall(body[at:at + 4000])
            self.assertIn(b" 400 ", s.recv(4096).split(b"\r\n")[0])
        try:
            reply = client.post(self.plain.port, "/v1/completions", b"{" + b" " * (9 << 20) + b"}")
            self.assertEqual(reply.status, 413)
        except (BrokenPipeError, ConnectionResetError):
            pass  # closed while we were still sending: the limit held
        self.assertEqual(client.complete(self.plain.port, "x", 1).status, 200)


class Stuck(E2E):
    """Instances that stand still are not waited for."""

    def test_d_stands_still(self):
        """One of two D is stopped (SIGSTOP): requests go on being answered by the other."""
        fleet = harness.deployment(n_decode=2)
        try:
            fleet.d.signal(signal.SIGSTOP)
            def ask(i):
                try:
                    return client.complete(fleet.proxy.port, [100 + i] * 20, 3, timeout=4).status
                except OSError:
                    return 0
            with ThreadPoolExecutor(4) as clients:
                answers = list(clients.map(ask, range(8)))
            self.assertGreaterEqual(answers.count(200), 4, answers)
            fleet.d.signal(signal.SIGCONT)
            wait_until("all answer again", 10, lambda: ask(99) == 200 and ask(98) == 200, 0.2)
            fleet.wait_idle()
        except BaseException:
            fleet.abandon()
            raise
        fleet.stop()


if __name__ == "__main__":
    harness.main()
