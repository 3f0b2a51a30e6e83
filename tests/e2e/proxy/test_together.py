"""Both legs at once (--kv-connector MooncakeLayerwiseConnector): what each is sent, and what becomes of a request
when one of them fails."""
import json
import time

from harness import Proxy, check, equal, raw_post, test, wait
from stub import KV, Stub, left, plain, reply

TOGETHER = ("--kv-connector", "MooncakeLayerwiseConnector")


def after(other):
    """A well-behaved instance that answers when the other one has been asked as often."""
    def script(stub, req, conn):
        wait(lambda: len(other.asked) >= len(stub.asked))
        return plain(stub, req, conn)
    return script


@test
def together_legs_get_one_name():
    p, d = Stub(), Stub()
    p.script, d.script = after(d), after(p)  # in turn neither would end
    with Proxy([p], [d], *TOGETHER) as px:
        for _ in range(2):
            equal(px.post({"prompt": "a", "max_tokens": 7}, headers={"Authorization": "Bearer k"}).status, 200)
        names = set()
        for a, b in zip(p.asked, d.asked):
            asked, given = a.json["kv_transfer_params"], b.json["kv_transfer_params"]
            equal((a.json["max_tokens"], b.json["max_tokens"]), (1, 7))
            equal((asked["do_remote_decode"], given["do_remote_prefill"]), (True, True))
            equal(asked["transfer_id"], given["transfer_id"])
            equal(given["remote_bootstrap_addr"], "http://127.0.0.1:%d" % p.port)
            equal([r.headers["authorization"] for r in (a, b)], ["Bearer k"] * 2)
            equal(a.headers["x-request-id"], b.headers["x-request-id"])
            names.add(given["transfer_id"])
        equal(len(names), 2)
        wait(lambda: px.metric("sluice:proxy_prefill_seconds_count") == 2)


@test
def together_cached_tokens_are_those_of_prefill():
    p, d = Stub(), Stub()
    p.cached = 16
    with Proxy([p], [d], *TOGETHER) as px:
        def later(stub, req, conn):
            wait(lambda: px.metric("sluice:proxy_prefill_seconds_count") == len(stub.asked))
            return plain(stub, req, conn)
        d.script = later
        equal(json.loads(px.post({"prompt": "a"}).body)["usage"]["prompt_tokens_details"]["cached_tokens"], 16)
        check('"cached_tokens":16' in px.post({"prompt": "a", "stream": True}).body.decode())


@test
def together_failed_prefill_is_left_to_decode():
    p, d = Stub(lambda s, r, c: reply(c, 500, b'{"error":"no"}')), Stub()
    d.script = after(p)
    with Proxy([p], [d], *TOGETHER) as px:
        equal(px.post({"prompt": "a"}).status, 200)
        wait(lambda: any("answered 500" in line for line in px.log))
        equal((len(p.asked), len(d.asked)), (1, 1))
        p.stop()
        d.script = plain
        wait(lambda: px.get("/healthcheck").status != 200)
        equal(px.post({"prompt": "a"}).status, 200)
        check("kv_transfer_params" not in d.asked[-1].json, d.asked[-1].body)


@test
def together_failed_decode_ends_or_moves():
    def fail(stub, req, conn):
        wait(lambda: len(p.asked) >= len(stub.asked))
        return reply(conn, 500, b"{}")
    p, d = Stub(lambda s, r, c: left(s, c, 10)), Stub(fail)
    with Proxy([p], [d], *TOGETHER, "--max-retries", "1") as px:
        equal(px.post({"prompt": "a"}).status, 502)
        wait(lambda: len(p.gone) == 2)  # each prefill was given up
        equal(len({r.json["kv_transfer_params"]["transfer_id"] for r in p.asked}), 2)
        equal(px.metric('sluice:proxy_retries_total{role="decode"}'), 1)


@test
def together_lease_is_released_when_decode_fails():
    p, d = Stub(), Stub()
    with Proxy([p], [d], *TOGETHER, "--max-retries", "0") as px:
        def late(stub, req, conn):
            wait(lambda: px.metric("sluice:proxy_prefill_seconds_count") == 1)
            return reply(conn, 500, b"{}")
        d.script = late
        equal(px.post({"prompt": "a"}, headers={"X-Request-Id": "abc"}).status, 502)
        wait(lambda: p.released)
        equal(p.released[0].json, {"kv_transfer_params": json.loads(KV % "abc")})


@test
def together_client_that_leaves_ends_both():
    p, d = Stub(lambda s, r, c: left(s, c, 10)), Stub(lambda s, r, c: left(s, c, 10))
    with Proxy([p], [d], *TOGETHER) as px:
        sock = px.connect()
        sock.sendall(raw_post({"prompt": "a"}))
        wait(lambda: p.asked and d.asked)
        sock.close()
        wait(lambda: p.gone and d.gone)


@test
def together_answer_that_comes_late():
    """D has ended before P says so: the client does not wait, and P is heard out."""
    def late(stub, req, conn):
        time.sleep(0.3)
        check(not left(stub, conn, 0.01))
        return plain(stub, req, conn)
    p, d = Stub(late), Stub()
    d.script = after(p)
    with Proxy([p], [d], *TOGETHER) as px:
        equal(px.post({"prompt": "a"}).status, 200)
        wait(lambda: px.metric("sluice:proxy_prefill_seconds_count") == 1)
        equal(p.gone, [])


@test
def together_stops_with_a_prefill_on_its_way():
    p, d = Stub(lambda s, r, c: left(s, c, 10)), Stub()
    d.script = after(p)
    with Proxy([p], [d], *TOGETHER) as px:
        equal(px.post({"prompt": "a"}).status, 200)
        equal(px.stop(), 0)
    wait(lambda: p.gone)
