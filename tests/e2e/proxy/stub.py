"""Scripted instances: servers that play given bytes and record what they were asked."""
import json
import socket
import struct
import threading
import time

KV = ('{"do_remote_prefill":true,"do_remote_decode":false,"remote_engine_id":"p-1",'
      '"remote_request_id":"r-%s","remote_block_ids":[3,9007199254740993],"remote_host":"127.0.0.1",'
      '"remote_port":20001,"remote_block_size":16}')


class Request:
    """One request as it came: the body stays text, so that tests can compare bytes."""

    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Stub:
    """A server on 127.0.0.1. script(stub, request, connection) plays the reply of POST requests and
    returns False to close the connection; probes get `health`."""

    def __init__(self, script=None, port=0, host="127.0.0.1"):
        self.script = script or plain
        self.requests = []      # all but probes
        self.connections = 0    # that carried a request other than a probe
        self.gone = []          # times at which a client was seen to leave
        self.health = 200
        self.ready_path = True
        self.cached = 0
        self.release_status = 200
        self.model = "m"
        self.port = port
        self.host = host
        self.family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.lock = threading.Lock()
        self.reserved = None
        self.start()

    def bind(self):
        sock = socket.socket(self.family)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((self.host, self.port))
        return sock

    def start(self):
        if self.reserved:
            self.reserved.close()
        self.listener = self.bind()
        self.listener.listen(256)
        self.port = self.listener.getsockname()[1]
        self.open = set()
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()
        return self

    def stop(self):
        """Refuses from now on, keeping the port to itself, and cuts what is open."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.reserved = self.bind()
        with self.lock:
            for c in self.open:
                cut(c)

    def accept(self, listener):
        while True:
            try:
                conn = listener.accept()[0]
            except OSError:
                return
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                self.open.add(conn)
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def serve(self, conn):
        counted = False
        try:
            while True:
                req = read_request(conn)
                if not req:
                    break
                if req.method == "GET" and req.path in ("/health", "/ready"):
                    found = self.ready_path or req.path == "/health"
                    reply(conn, self.health if found else 404, b"", headers="Connection: close\r\n")
                    break
                with self.lock:
                    self.requests.append(req)
                    self.connections += not counted
                counted = True
                if self.answer(req, conn) is False:
                    break
        except OSError:
            pass
        with self.lock:
            self.open.discard(conn)
        conn.close()

    def answer(self, req, conn):
        if req.path == "/v1/models":
            return reply(conn, 200, json.dumps(
                {"object": "list", "data": [{"id": self.model, "object": "model"}]}).encode())
        if req.path == "/v1/kv/release":
            return reply(conn, self.release_status, b'{"released":true}')
        return self.script(self, req, conn)

    def of(self, path):
        return [r for r in self.requests if r.path == path]

    @property
    def asked(self):
        return [r for r in self.requests if r.path.startswith("/v1/c")]

    @property
    def released(self):
        return self.of("/v1/kv/release")


def read_request(conn):
    data = b""
    while b"\r\n\r\n" not in data:
        more = conn.recv(65536)
        if not more:
            return None
        data += more
    head, body = data.split(b"\r\n\r\n", 1)
    lines = head.decode("latin1").split("\r\n")
    headers = {}
    for line in lines[1:]:
        name, value = line.split(":", 1)
        headers[name.lower()] = value.strip()
    while len(body) < int(headers.get("content-length", 0)):
        body += conn.recv(1 << 20)
    method, path, _ = lines[0].split(" ")
    return Request(method, path, headers, body.decode())


def cut(conn):
    """A reset, as from a killed process."""
    try:
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        conn.shutdown(socket.SHUT_RDWR)
        conn.close()
    except OSError:
        pass


def reply(conn, status, body, kind="application/json", headers=""):
    conn.sendall(b"HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n%s\r\n%s" % (
        status, kind.encode(), len(body), headers.encode(), body))


def start_stream(conn):
    conn.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                 b"Transfer-Encoding: chunked\r\n\r\n")


def chunk(conn, data):
    conn.sendall(b"%x\r\n%s\r\n" % (len(data), data))


def end_stream(conn):
    conn.sendall(b"0\r\n\r\n")


def left(stub, conn, seconds):
    """Waits; True as soon as the client has closed."""
    conn.settimeout(seconds)
    try:
        gone = conn.recv(1) == b""
    except socket.timeout:
        return False
    except OSError:
        gone = True
    if gone:
        stub.gone.append(time.time())
    return gone


USAGE = '"usage":{"prompt_tokens":40,"total_tokens":43,"completion_tokens":3,' \
        '"prompt_tokens_details":{"cached_tokens":40,"x":1.50}}'


def plain(stub, req, conn):
    """The well-behaved instance of either role."""
    if '"do_remote_decode":true' in req.body:
        body = ('{"id":"c","choices":[],"usage":{"prompt_tokens":40,"prompt_tokens_details":'
                '{"cached_tokens":%d}},"kv_transfer_params":%s}' %
                (stub.cached, KV % req.headers.get("x-request-id", "")))
        return reply(conn, 200, body.encode())
    if req.json.get("stream"):
        return stream(conn)
    return reply(conn, 200, ('{"id":"c","choices":[{"text":"안녕"}],%s}' % USAGE).encode())


EVENTS = [b'data: {"choices":[{"text":"\xec\x95\x88\xeb\x85\x95 \xf0\x9f\x99\x82"}]}\n\n',
          b': comment\n\n',
          b'data:{"choices":[{"text":"two"}]}\r\n\r\n',
          b'data: {"choices":[],' + USAGE.encode() + b'}\n\n',
          b'data: [DONE]\n\n']


def stream(conn, events=EVENTS):
    start_stream(conn)
    for e in events:
        chunk(conn, e)
    end_stream(conn)
