"""A small HTTP client for the end-to-end tests: replies, event streams and metrics, byte for byte."""
import http.client
import json
import re
import socket
import time

HOST = "127.0.0.1"


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"{self.status} {self.body[:400]!r}"


def encode(body):
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def request(port, method, path, body=None, headers=None, timeout=120):
    conn = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        data = None if body is None else encode(body)
        conn.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
        reply = conn.getresponse()
        return Reply(reply.status, reply.headers, reply.read())
    finally:
        conn.close()


def get(port, path, timeout=10, **kw):
    return request(port, "GET", path, timeout=timeout, **kw)


def post(port, path, body, **kw):
    return request(port, "POST", path, body, **kw)


class Stream:
    """A streamed reply. Iterating gives each event's JSON; `done` says whether [DONE] came."""

    def __init__(self, port, path, body, headers=None, timeout=120):
        self.conn = http.client.HTTPConnection(HOST, port, timeout=timeout)
        self.done, self.raw, self.times = False, [], []
        self.conn.request("POST", path, encode({**body, "stream": True}),
                          {"Content-Type": "application/json", **(headers or {})})
        self.sock = self.conn.sock  # http.client lets go of it when the reply ends the connection
        self.reply = self.conn.getresponse()
        self.status, self.headers = self.reply.status, self.reply.headers

    def __iter__(self):
        while line := self.reply.readline():
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            self.raw.append(data)
            self.times.append(time.monotonic())
            if data == b"[DONE]":
                self.done = True
                continue
            yield json.loads(data.decode("utf-8"))  # an event that is not valid UTF-8 raises

    def close(self):
        self.reply.close()
        self.conn.close()

    def hang_up(self):
        """Closes as a client that was killed does: at once, with a reset."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def send_only(port, path, body):
    """A request whose reply nobody will read: the open socket."""
    data = encode(body)
    sock = socket.create_connection((HOST, port), timeout=10)
    sock.sendall(f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return sock


SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Metrics:
    """One reading of /metrics; the text format is checked on the way."""

    def __init__(self, text):
        self.samples = []
        self.types = {}
        for line in text.splitlines():
            if line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                self.types[name] = kind
            elif line and not line.startswith("#"):
                m = SAMPLE.match(line)
                if not m:
                    raise ValueError(f"not a metric line: {line!r}")
                self.samples.append((m[1], dict(LABEL.findall(m[2] or "")), float(m[3])))

    def get(self, name, **labels):
        """The sum over all samples of that name whose labels agree."""
        return sum(v for n, ls, v in self.samples
                   if n == name and all(ls.get(k) == w for k, w in labels.items()))

    def has(self, name):
        return any(n == name for n, _, _ in self.samples)

    def labels(self, name):
        return [ls for n, ls, _ in self.samples if n == name]


def metrics(port):
    reply = get(port, "/metrics")
    if reply.status != 200:
        raise RuntimeError(f"/metrics: {reply}")
    return Metrics(reply.body.decode("utf-8"))


def tokens(reply):
    """The token ids of a completion's first choice; the request must have asked for them."""
    if reply.status != 200:
        raise AssertionError(f"expected 200: {reply}")
    ids = reply.json()["choices"][0]["token_ids"]
    if not isinstance(ids, list):
        raise AssertionError(f"no token_ids: {reply}")
    return ids


def complete(port, prompt, n, timeout=120, headers=None, **fields):
    """Greedy by default, exactly n tokens, with their ids."""
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True, **fields}
    return post(port, "/v1/completions", body, timeout=timeout, headers=headers)
