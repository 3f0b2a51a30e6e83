"""Streams, and clients that leave (PX-06, PX-13, PX-M1, PX-M4)."""
import json
import random
import socket
import statistics
import threading
import time

from harness import Proxy, at_once, check, equal, raw_post, read_all, read_until, test, wait
from stub import EVENTS, Stub, chunk, end_stream, left, plain, reply, start_stream, stream

STREAM = {"prompt": "a", "stream": True}


def client_bytes(script):
    with Proxy([Stub()], [Stub(script)]) as px:
        r = px.post(STREAM)
        equal(r.getheader("content-type"), "text/event-stream; charset=utf-8")
        equal(r.getheader("content-length"), None)
        return r.body


@test
def any_segmentation_gives_the_same_bytes():
    whole = b"".join(EVENTS)

    def one_write(stub, req, conn):
        start_stream(conn)
        chunk(conn, whole)
        end_stream(conn)

    def one_byte_chunks(stub, req, conn):
        start_stream(conn)
        for i in range(len(whole)):
            chunk(conn, whole[i:i + 1])
        end_stream(conn)

    def one_byte_writes(stub, req, conn):
        data = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + whole
        for i in range(len(data)):
            conn.sendall(data[i:i + 1])
        return False
    expected = whole.replace(b'"cached_tokens":40', b'"cached_tokens":0')
    for script in (one_write, one_byte_chunks, one_byte_writes):
        equal(client_bytes(script), expected)


@test
def each_event_leaves_at_once_and_whole():
    go = threading.Event()

    def script(stub, req, conn):
        start_stream(conn)
        chunk(conn, EVENTS[0][:20])
        time.sleep(0.05)
        chunk(conn, EVENTS[0][20:])
        go.wait(5)
        chunk(conn, EVENTS[4])
        end_stream(conn)
    with Proxy([Stub()], [Stub(script)]) as px:
        sock = px.connect()
        sock.sendall(raw_post(STREAM))
        data = read_until(sock, b"\r\n\r\n")
        check(EVENTS[0] in data, data)  # with the head, before the second is sent
        go.set()
        equal(sock.recv(65536)[:len(EVENTS[4]) + 3], b"e\r\n" + EVENTS[4])


@test
def large_event_arrives():
    big = b'data: {"text":"' + b"x" * 3000000 + b'"}\n\n'
    with Proxy([Stub()], [Stub(lambda s, r, c: stream(c, [big, EVENTS[4]]))]) as px:
        equal(px.post(STREAM).body, big + EVENTS[4])


@test
def healthy_long_stream_is_not_cut():
    def script(stub, req, conn):
        start_stream(conn)
        for _ in range(10):
            chunk(conn, b"data: {}\n\n")
            time.sleep(0.1)
        stream_end(conn)

    def stream_end(conn):
        chunk(conn, EVENTS[4])
        end_stream(conn)
    with Proxy([Stub()], [Stub(script)], "--silence-timeout", "0.5", "--first-byte-timeout", "0.5",
               "--connect-timeout", "0.5") as px:
        equal(px.post(STREAM).body, b"data: {}\n\n" * 10 + EVENTS[4])


@test
def silence_ends_with_an_error_event():
    def script(stub, req, conn):
        start_stream(conn)
        chunk(conn, EVENTS[0])
        left(stub, conn, 5)
        return False
    p, d = Stub(), Stub(script)
    with Proxy([p], [d], "--silence-timeout", "0.2") as px:
        body = px.post(STREAM).body
        equal(json.loads(body[len(EVENTS[0]) + 6:])["error"]["code"], 504)
        wait(lambda: d.gone)
        wait(lambda: p.released)


@test
def slow_first_byte_is_504():
    d = Stub(lambda s, r, c: not left(s, c, 5))
    with Proxy([Stub()], [d], "--first-byte-timeout", "0.15", "--max-retries", "0") as px:
        equal(px.post(STREAM).status, 504)
        wait(lambda: d.gone)


@test
def client_that_leaves_in_prefill():
    p = Stub(lambda s, r, c: not left(s, c, 5) and plain(s, r, c))
    d = Stub()
    with Proxy([p], [d]) as px:
        sock = px.connect()
        sock.sendall(raw_post(STREAM))
        wait(lambda: p.asked)
        at = time.time()
        sock.close()
        wait(lambda: p.gone)
        check(p.gone[0] - at < 0.2, p.gone[0] - at)
        equal(len(d.asked), 0)
        equal(px.metric('sluice:proxy_errors_total{cause="client_gone"}'), 1)
        equal(px.metric("sluice:proxy_requests_running"), 0)


@test
def client_that_leaves_in_decode():
    for started in (False, True):
        def script(stub, req, conn, started=started):
            if started:
                start_stream(conn)
                chunk(conn, EVENTS[0])
            left(stub, conn, 5)
            return False
        p, d = Stub(), Stub(script)
        with Proxy([p], [d]) as px:
            sock = px.connect()
            sock.sendall(raw_post(STREAM))
            wait(lambda: d.asked)
            if started:
                read_until(sock, EVENTS[0])
            sock.close()
            wait(lambda: d.gone)
            wait(lambda: len(p.released) == 1)
            equal([i["held_kv"] for i in json.loads(px.get("/healthcheck").body)["instances"]],
                  [0, 0])


def at_rest(px):
    """Nothing runs, nothing is charged to anybody."""
    i = json.loads(px.get("/healthcheck").body)["instances"]
    return px.metric("sluice:proxy_requests_running") == 0 and not any(
        x["requests"] or x["load"] or x["held_kv"] for x in i)


@test
def clients_that_leave_at_random_moments():
    def slow(stub, req, conn):
        if left(stub, conn, 0.01):
            return False
        if '"do_remote_decode":true' in req.body:
            return plain(stub, req, conn)
        start_stream(conn)
        for e in EVENTS:
            chunk(conn, e)
            if left(stub, conn, 0.003):
                return False
        end_stream(conn)
    random.seed(7)
    p, d, d2 = Stub(slow), Stub(slow), Stub(slow)
    with Proxy([p], [d, d2]) as px:
        px.post(STREAM)
        files = px.open_files()
        for _ in range(100):
            sock = px.connect()
            sock.sendall(raw_post(STREAM))
            time.sleep(random.random() * 0.04)
            sock.close()
        wait(lambda: at_rest(px))
        equal(px.post(STREAM).status, 200)
        wait(lambda: px.open_files() <= files + 6)
        gone = px.metric('sluice:proxy_errors_total{cause="client_gone"}')
        check(40 <= gone <= 100, gone)


@test
def many_requests_leave_nothing_behind():
    p, p2, d, d2 = Stub(), Stub(), Stub(), Stub()

    def some():
        sock = px.connect()
        good = 0
        for i in range(60):
            body = {"prompt": "a" * (i * 10), "stream": i % 2 == 0}
            sock.sendall(raw_post(body))
            data = read_until(sock, b"0\r\n\r\n" if i % 2 == 0 else b"}}}")
            good += data.startswith(b"HTTP/1.1 200 OK")
        sock.close()
        return good
    with Proxy([p, p2], [d, d2]) as px:
        equal(at_once([some] * 16), [60] * 16)
        wait(lambda: at_rest(px))
        memory = px.memory()
        equal(at_once([some] * 16), [60] * 16)
        check(px.memory() - memory < 10e6, memory, px.memory())
        equal(px.metric('sluice:proxy_requests_total{status="2xx"}'), 1920)


@test
def slow_client_is_cut_and_bounded():
    d = Stub()

    def script(stub, req, conn):
        event = b"data: " + b"x" * 100000 + b"\n\n"
        start_stream(conn)
        for _ in range(1000):
            chunk(conn, event)
    d.script = script
    with Proxy([Stub()], [d]) as px:
        sock = px.connect()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(raw_post(STREAM))
        wait(lambda: px.metric('sluice:proxy_errors_total{cause="client_slow"}') == 1)
        check(len(read_all(sock)) < 40e6)


def stream_seconds(port):
    sock = socket.create_connection(("127.0.0.1", port))
    start = time.perf_counter()
    sock.sendall(raw_post(STREAM, headers="Connection: close\r\n"))
    read_until(sock, b"[DONE]")
    sock.close()
    return time.perf_counter() - start


@test
def proxy_adds_little_to_a_stream():
    events = [b'data: {"i":%d}\n\n' % i for i in range(64)] + [EVENTS[4]]

    def script(stub, req, conn):
        if "do_remote_decode" in req.body and '"do_remote_decode":true' in req.body:
            return plain(stub, req, conn)
        start_stream(conn)
        for e in events:
            chunk(conn, e)
            time.sleep(0.0005)
        end_stream(conn)
    d = Stub(script)
    with Proxy([Stub()], [d]) as px:
        stream_seconds(px.port)
        direct = statistics.median(stream_seconds(d.port) for _ in range(9))
        through = statistics.median(stream_seconds(px.port) for _ in range(9))
        print("     64 events: direct %.1f ms, through the proxy and prefill %.1f ms"
              % (direct * 1e3, through * 1e3))
        check(through - direct < 0.020, direct, through)
