"""Instances coming and going, what the proxy tells about itself, limits, starting and stopping
(PX-12, API-07, OP-01, OP-02, OP-03, OP-06)."""
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time

import harness
from harness import Proxy, at_once, check, equal, error_of, raw_post, read_all, read_until, test, wait
from stub import EVENTS, Stub, chunk, end_stream, plain, reply, start_stream

ASK = {"prompt": "a"}


def states(px):
    return {i["instance"]: i["state"] for i in json.loads(px.get("/healthcheck").body)["instances"]}


def name(stub):
    return "127.0.0.1:%d" % stub.port


@test
def start_tells_whom_it_reached():
    p, d, d2 = Stub(), Stub(), Stub()
    d2.stop()
    with Proxy([p], [d, d2]) as px:
        log = "\n".join(px.log)
        check("Initialized 1 prefill clients and 1 decode clients." in log, log)
        check("prefill clients: " + name(p) in log and "decode clients: " + name(d) in log, log)
        check(px.log[-1].endswith("Application startup complete."), log)
        r = px.get("/healthcheck")
        j = json.loads(r.body)
        equal((r.status, j["status"], j["prefill_instances"], j["decode_instances"],
               j["active_decode_instances"]), (200, "ok", 1, 2, 1))
        d2.start()
        wait(lambda: states(px)[name(d2)] == "active")


@test
def removal_drains_under_load():
    release = threading.Event()

    def slow(stub, req, conn):
        if "long" in req.body:
            release.wait(5)
        return plain(stub, req, conn)
    p, d, d2 = Stub(), Stub(slow), Stub(slow)
    with Proxy([p], [d, d2]) as px:
        running = threading.Thread(target=lambda: long.append(px.post({"prompt": "long"}).status))
        long = []
        running.start()
        busy = wait(lambda: [s for s in (d, d2) if s.asked])[0]
        r = px.post({"type": "decode", "instances": [name(busy)]}, "/instances/remove")
        equal(r.status, 200)
        check(name(busy) not in json.loads(r.body)["current_decode_instances"], r.body)
        hits = len(busy.asked)
        equal([px.post(ASK).status for _ in range(20)], [200] * 20)
        equal(len(busy.asked), hits)
        equal(states(px)[name(busy)], "draining")
        equal(px.post({"type": "decode", "instances": name(busy)}, "/instances/remove").status, 200)
        release.set()
        running.join(5)
        equal(long, [200])
        check(name(busy) not in states(px), states(px))
        equal(px.post({"type": "decode", "instances": name(busy)}, "/instances/remove").status, 404)


@test
def addition_waits_for_readiness():
    p, d = Stub(), Stub()
    late = Stub()
    late.health = 503
    with Proxy([p], [d], "--max-waiting-retries", "1000") as px:
        r = px.post({"type": "decode", "instances": [name(late)]}, "/instances/add")
        equal(r.status, 200)
        check(name(late) in json.loads(r.body)["current_decode_instances"], r.body)
        equal([px.post(ASK).status for _ in range(6)], [200] * 6)
        equal((states(px)[name(late)], len(late.asked)), ("pending", 0))
        late.health = 200
        wait(lambda: states(px)[name(late)] == "active")
        equal(px.post({"type": "decode", "instances": [name(late)]}, "/instances/add").status, 200)
        for _ in range(6):
            px.post(ASK)
        check(late.asked)


@test
def addition_that_never_answers_fails():
    p, d, dead = Stub(), Stub(), Stub()
    dead.stop()
    with Proxy([p], [d], "--max-waiting-retries", "2") as px:
        equal(px.post({"type": "prefill", "instances": name(dead)}, "/instances/add").status, 200)
        wait(lambda: states(px)[name(dead)] == "failed")


@test
def bad_instance_requests():
    with Proxy([Stub()], [Stub()]) as px:
        for body, status, param in (
                ({"type": "foo", "instances": ["h:1"]}, 400, "type"),
                ({"instances": ["h:1"]}, 400, "type"),
                ({"type": "decode", "instances": []}, 400, "instances"),
                ({"type": "decode"}, 400, "instances"),
                ({"type": "decode", "instances": ["nocolon"]}, 400, "instances"),
                ({"type": "decode", "instances": ["h:0"]}, 400, "instances"),
                ({"type": "decode", "instances": ["h:65536"]}, 400, "instances"),
                ({"type": "decode", "instances": ["[::1:80"]}, 400, "instances"),
                ({"type": "decode", "instances": ["a b:80"]}, 400, "instances"),
                ({"type": "decode", "instances": [7]}, 400, "instances"),
                ("nonsense", 400, None)):
            equal(error_of(px.post(body, "/instances/add"))["param"], param)
        e = error_of(px.post({"type": "decode", "instances": ["127.0.0.1:1"]}, "/instances/remove"))
        equal(e["code"], 404)


@test
def ipv6_instances():
    try:
        d6 = Stub(host="::1")
    except OSError:
        print("     no IPv6 here")
        return
    with Proxy([Stub()], [Stub()]) as px:
        equal(px.post({"type": "decode", "instances": ["[::1]:%d" % d6.port]},
                      "/instances/add").status, 200)
        wait(lambda: states(px)["[::1]:%d" % d6.port] == "active")
        for _ in range(4):
            equal(px.post(ASK).status, 200)
        check(d6.asked)


@test
def unready_instance_gets_nothing():
    p, d, d2 = Stub(), Stub(), Stub()
    with Proxy([p], [d, d2]) as px:
        d.health = 503
        wait(lambda: states(px)[name(d)] == "failed")
        before = len(d.asked)
        equal([px.post(ASK).status for _ in range(6)], [200] * 6)
        equal(len(d.asked), before)
        d.health = 200
        wait(lambda: states(px)[name(d)] == "active")


@test
def instances_without_ready_path():
    p, d = Stub(), Stub()
    p.ready_path = d.ready_path = False
    with Proxy([p], [d]) as px:
        wait(lambda: px.get("/ready").status == 200)
        equal(px.post(ASK).status, 200)


@test
def models_and_passing_through():
    p, d = Stub(lambda s, r, c: reply(c, 200, b"{}")), Stub(
        lambda s, r, c: reply(c, 200, b'{"count":1, "tokens":[7]}' if "tokenize" in r.path else b""))
    p.model, d.model = "m", "m:lora"
    with Proxy([p], [d]) as px:
        ids = [m["id"] for m in json.loads(px.get("/v1/models").body)["data"]]
        equal(sorted(ids), ["m", "m:lora"])
        equal(json.loads(px.get("/v1/models/m%3Alora").body)["id"], "m:lora")
        for missing in ("none", "%ff%22", "%ED%95%9C"):
            equal(error_of(px.get("/v1/models/" + missing))["param"], "model")
        equal(px.post(ASK, "/tokenize").body, b'{"count":1, "tokens":[7]}')
        equal(px.post(ASK, "/reset_prefix_cache").status, 200)
        equal((len(p.of("/reset_prefix_cache")), len(d.of("/reset_prefix_cache"))), (1, 1))
        p.stop()
        r = px.post(ASK, "/reset_prefix_cache")
        equal((r.status, json.loads(r.body)), (500, {"failed": [name(p)]}))


@test
def routes():
    with Proxy([Stub()], [Stub()]) as px:
        r = px.get("/v1/embeddings")
        equal((r.status, json.loads(r.body)), (404, {"detail": "Not Found"}))
        r = px.get("/v1/completions")
        equal((r.status, r.getheader("allow")), (405, "POST"))
        r = px.call("PUT", "/metrics")
        equal((r.status, r.getheader("allow")), (405, "GET, HEAD"))
        equal((px.call("HEAD", "/metrics").status, px.get("/health").body), (200, b""))
        check("version" in json.loads(px.get("/version").body))
        for line in px.get("/metrics").body.decode().splitlines():
            check(line.startswith("#") or (line.startswith("sluice:") and float(line.split()[-1]) >= 0),
                  line)


@test
def bodies_of_any_size_and_pace():
    p, d = Stub(), Stub()
    big = json.dumps({"prompt": "y" * 1000000, "max_tokens": 1})
    with Proxy([p], [d], "--max-body-size", "2000000") as px:
        data = raw_post(big, headers="Connection: close\r\n")
        sock = px.connect()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(0, len(data), 100):
            sock.sendall(data[i:i + 100])
        check(b" 200 OK" in read_all(sock))
        equal(d.asked[0].json["prompt"], "y" * 1000000)
        conn = http.client.HTTPConnection("127.0.0.1", px.port, timeout=20)
        conn.request("POST", "/v1/completions",
                     iter([big[i:i + 7777].encode() for i in range(0, len(big), 7777)]),
                     encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
        equal(conn.getresponse().status, 200)
        rss = px.memory()
        for _ in range(10):
            sock = px.connect()
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2000001\r\n\r\n" + b"z" * 9000)
            answer = read_all(sock)
            check(answer.startswith(b"HTTP/1.1 413 ") and b'"code":413' in answer, answer)
        check(px.memory() - rss < 20e6)
        sock = px.connect()
        sock.sendall(b"GET /health HTTP/1.1\r\nX: " + b"h" * 70000)
        check(read_all(sock).startswith(b"HTTP/1.1 431 "))


@test
def load_is_spread():
    hold = threading.Event()

    def script(stub, req, conn):
        hold.wait(5)
        return plain(stub, req, conn)
    p, ds = Stub(), [Stub(script) for _ in range(4)]
    with Proxy([p], ds) as px:
        asking = threading.Thread(target=at_once, args=([lambda: px.post(ASK)] * 40,))
        asking.start()
        wait(lambda: sum(len(d.asked) for d in ds) == 40)
        equal([len(d.asked) for d in ds], [10] * 4)
        hold.set()
        asking.join(10)


@test
def terminate_finishes_what_runs():
    hold = threading.Event()

    def script(stub, req, conn):
        start_stream(conn)
        chunk(conn, EVENTS[0])
        hold.wait(5)
        chunk(conn, EVENTS[4])
        end_stream(conn)
    px = Proxy([Stub()], [Stub(script)])
    sock = px.connect()
    sock.sendall(raw_post({"prompt": "a", "stream": True}))
    read_until(sock, EVENTS[0])
    px.process.send_signal(signal.SIGTERM)
    wait(lambda: any("no new requests" in l for l in px.log))
    equal(error_of(px.post(ASK))["code"], 503)
    equal((px.get("/health").status, px.get("/ready").status), (200, 503))
    hold.set()
    check(EVENTS[4] in read_all(sock))
    equal(px.stop(None), 0)


@test
def terminate_has_a_limit():
    def script(stub, req, conn):
        start_stream(conn)
        chunk(conn, EVENTS[0])
        time.sleep(3)
    p = Stub()
    px = Proxy([p], [Stub(script)], "--shutdown-timeout", "0.2")
    sock = px.connect()
    sock.sendall(raw_post({"prompt": "a", "stream": True}))
    read_until(sock, EVENTS[0])
    px.process.send_signal(signal.SIGTERM)
    check(b"shutting down" in read_all(sock))
    equal(px.stop(None), 0)
    equal(len(p.released), 1)


@test
def second_signal_ends_at_once():
    px = Proxy([Stub(lambda s, r, c: time.sleep(3))], [Stub()])
    sock = px.connect()
    sock.sendall(raw_post(ASK))
    time.sleep(0.05)
    px.process.send_signal(signal.SIGTERM)
    wait(lambda: any("no new requests" in l for l in px.log))
    start = time.time()
    check(px.stop() != 0)
    check(time.time() - start < 2)


@test
def command_lines():
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen(1)
    port = str(taken.getsockname()[1])
    d = ["--decoder-hosts", "127.0.0.1", "--decoder-ports", "7100"]
    for args, words in (
            (["--decoder-hosts", "a", "b", "--decoder-ports", "1"], ["--decoder-hosts", "2", "1"]),
            (d + ["--prefiller-hosts", "a"], ["--prefiller-hosts", "1", "0"]),
            (["--prefiller-hosts", "a", "--prefiller-port", "1"], ["--decoder-hosts"]),
            (["--decoder-hosts", "192.0.0.3192.0.0.3", "--decoder-ports", "1"], ["entry 1", "192"]),
            (["--decoder-hosts", "192.0.0.3--decoder-ports", "--decoder-ports", "1"], ["entry 1"]),
            (["--decoder-hosts", "a", "--decoder-ports", "x"], ["--decoder-ports", "entry 1"]),
            (["--decoder-hosts", "a", "a", "--decoder-ports", "1", "1"], ["entry 2", "twice"]),
            (d + ["--prefiler-hosts", "a"], ["--prefiller-hosts"]),
            (d + ["--host", "127.0.0.1", "--port", port], [port, "pid %d" % os.getpid()])):
        start = time.time()
        run = subprocess.run([harness.SLUICE, "proxy", *args], stderr=subprocess.PIPE, text=True,
                             timeout=10)
        check(run.returncode not in (0, -11) and time.time() - start < 5, run)
        check(all(w in run.stderr for w in words), words, run.stderr)
    taken.close()


@test
def reference_command_line():
    hosts = ["127.0.0.1"] * 32
    ports = [str(7100 + i) for i in range(32)]
    px = Proxy([], [], "--prefiller-hosts", "127.0.0.1", "--prefiller-port", "8003", "--decoder-hosts",
               *hosts, "--decoder-ports", *ports)
    try:
        j = json.loads(px.get("/healthcheck").body)
        equal((j["prefill_instances"], j["decode_instances"]), (1, 32))
    finally:
        px.stop()
