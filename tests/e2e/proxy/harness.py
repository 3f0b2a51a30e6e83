"""The proxy as a process, a client that shows raw bytes, and the runner."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import traceback

SLUICE = None
tests = []


def test(fn):
    tests.append(fn)
    return fn


class Failed(AssertionError):
    pass


def check(what, *seen):
    if not what:
        raise Failed("seen: " + ", ".join(repr(s)[:600] for s in seen))


def equal(a, b):
    check(a == b, a, b)


def wait(what, seconds=5.0):
    """Until what() holds; its value."""
    end = time.time() + seconds
    while time.time() < end:
        value = what()
        if value:
            return value
        time.sleep(0.005)
    raise Failed("not within %.1f s" % seconds)


class Proxy:
    def __init__(self, prefill=(), decode=(), *flags, wait_for="Application startup complete."):
        args = [SLUICE, "proxy", "--host", "127.0.0.1", "--port", "0"]
        for name, stubs in (("prefiller", prefill), ("decoder", decode)):
            if stubs:
                args += ["--%s-hosts" % name] + [s.host for s in stubs]
                args += ["--%s-ports" % name] + [str(s.port) for s in stubs]
        args += ["--health-check-interval", "0.2", "--waiting-retry-interval", "0.1", *flags]
        # A sanitizer's quarantine would look like a leak.
        env = {**os.environ, "ASAN_OPTIONS": "quarantine_size_mb=1"}
        self.process = subprocess.Popen(args, stderr=subprocess.PIPE, text=True, env=env)
        self.log = []
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()
        if wait_for:
            wait(lambda: any(wait_for in l for l in self.log) or self.process.poll() is not None, 10)
            port = [re.search(r"Listening on .*:(\d+)", l) for l in self.log]
            self.port = next((int(m.group(1)) for m in port if m), None)
            check(self.port, self.log)

    def read_log(self):
        for line in self.process.stderr:
            self.log.append(line.rstrip())

    def stop(self, sig=signal.SIGTERM, seconds=10):
        """The exit status; sig None: it is ending already. A sanitizer's report is a failure."""
        if sig and self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed("the proxy does not end", self.log[-5:])
        self.reader.join(5)
        check(not any("Sanitizer" in l or "runtime error" in l for l in self.log), self.log)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if exc[0] and os.environ.get("VERBOSE"):
            print("\n".join(self.log))
        try:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            pass  # a test left a request running: the second signal ends it
        code = self.stop()
        if not exc[0]:
            check(code in (0, 128 + signal.SIGTERM), code)

    def memory(self):
        """Resident bytes."""
        with open("/proc/%d/statm" % self.process.pid) as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self):
        return len(os.listdir("/proc/%d/fd" % self.process.pid))

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def call(self, method, path, body=None, headers=None):
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        conn.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        r = conn.getresponse()
        r.body = r.read()
        conn.close()
        return r

    def post(self, body, path="/v1/completions", headers=None):
        return self.call("POST", path, body, headers)

    def get(self, path):
        return self.call("GET", path)

    def metric(self, line):
        """The value of the line of /metrics that begins so."""
        for l in self.get("/metrics").body.decode().splitlines():
            if l.startswith(line + " "):
                return float(l.split()[-1])
        raise Failed(line)


def raw_post(body, path="/v1/completions", headers=""):
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s" % (
        path.encode(), headers.encode(), len(data), data)


def read_all(sock):
    data = b""
    while True:
        try:
            more = sock.recv(65536)
        except ConnectionResetError:
            return data
        if not more:
            return data
        data += more


def read_until(sock, mark):
    data = b""
    while mark not in data:
        more = sock.recv(65536)
        if not more:
            raise Failed("ended early", data)
        data += more
    return data


def error_of(r):
    """The body as OpenAI's error object."""
    e = json.loads(r.body)["error"]
    equal(sorted(e), ["code", "message", "param", "type"])
    equal(e["code"], r.status)
    return e


def at_once(fns):
    """Runs all in threads; their results in order."""
    out = [None] * len(fns)

    def one(i):
        out[i] = fns[i]()
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(fns))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    return out


def run_all(only):
    passed = failed = 0
    for fn in tests:
        if only and only not in fn.__name__:
            continue
        start = time.time()
        try:
            fn()
            passed += 1
            print("ok   %-46s %.2f s" % (fn.__name__, time.time() - start), flush=True)
        except Exception:
            failed += 1
            print("FAIL %s" % fn.__name__, flush=True)
            traceback.print_exc()
    print("%d passed, %d failed" % (passed, failed))
    return failed
