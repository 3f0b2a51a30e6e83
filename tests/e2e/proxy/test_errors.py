"""Failures told truthfully (PX-01, PX-03, PX-10, PX-M2, PX-M3, PX-M5, PX-M6)."""
import json
import time

from harness import Proxy, at_once, check, equal, error_of, read_all, raw_post, test, wait
from stub import EVENTS, Stub, chunk, cut, end_stream, plain, reply, start_stream

BOTH = ({"prompt": "a"}, {"prompt": "a", "stream": True})
REFUSAL = b'{"error": {"message":"too long: 65 > 64","type":"Bad Request", "param":null,"code":400}}'


@test
def decode_refusal_passes_as_it_is():
    p = Stub()
    d = Stub(lambda s, r, c: reply(c, 400, REFUSAL))
    with Proxy([p], [d]) as px:
        for body in BOTH:
            r = px.post(body)
            equal((r.status, r.body), (400, REFUSAL))
        equal(len(d.asked), 2)
        equal(px.metric('sluice:proxy_errors_total{cause="upstream_4xx"}'), 2)
        wait(lambda: len(p.released) == 2)
        equal(p.released[0].json["kv_transfer_params"]["remote_engine_id"], "p-1")


@test
def a_release_carries_the_clients_key():
    p = Stub()
    d = Stub(lambda s, r, c: reply(c, 400, REFUSAL))
    with Proxy([p], [d]) as px:
        px.post(BOTH[0], headers={"Authorization": "Bearer k"})
        wait(lambda: len(p.released) == 1)
        equal(p.released[0].headers["authorization"], "Bearer k")


@test
def prefill_refusal_passes_as_it_is():
    p = Stub(lambda s, r, c: reply(c, 429, REFUSAL, headers="Retry-After: 9\r\n"))
    d = Stub()
    with Proxy([p], [d]) as px:
        for body in BOTH:
            r = px.post(body)
            equal((r.status, r.body, r.getheader("retry-after")), (429, REFUSAL, "9"))
        equal((len(p.asked), len(d.asked)), (2, 0))


@test
def stopped_decode_is_502_then_503():
    p, d = Stub(), Stub()
    with Proxy([p], [d], "--health-check-interval", "60") as px:
        d.stop()
        for body, status in zip(BOTH, (502, 503)):
            start = time.time()
            r = px.post(body)
            check(time.time() - start < 2, r.status)
            equal(error_of(r)["code"], status)
        check(int(r.getheader("retry-after")) > 0)
        equal(px.metric('sluice:proxy_errors_total{cause="connect"}'), 1)
        equal(px.metric('sluice:proxy_errors_total{cause="no_instance"}'), 1)
        wait(lambda: len(p.released) == 1)
        equal(len(p.asked), 1)  # no prefill for a request that nobody would decode


def never_200_without_content(script):
    p, d = Stub(), Stub(script)
    with Proxy([p], [d], "--max-retries", "1", "--health-failure-threshold", "100") as px:
        for i, body in enumerate(BOTH):
            equal(error_of(px.post(body))["code"], 502)
            equal(len(d.asked), 2 * (i + 1))
        wait(lambda: len(p.released) == 2)


@test
def decode_that_hangs_up_is_502():
    never_200_without_content(lambda s, r, c: False)


@test
def decode_that_resets_is_502():
    never_200_without_content(lambda s, r, c: cut(c) or False)


@test
def decode_5xx_is_502():
    never_200_without_content(lambda s, r, c: reply(c, 500, b'{"error":"boom \xff\x01"}'))


@test
def stream_without_events_is_502():
    def script(stub, req, conn):
        start_stream(conn)
        end_stream(conn)
    never_200_without_content(script)


@test
def truncated_json_is_502():
    def script(stub, req, conn):
        conn.sendall(b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n'
                     b'\r\n{"choices":[{"text":"half')
        return False
    never_200_without_content(script)


@test
def broken_stream_ends_with_an_error_event():
    ends = [lambda c: cut(c) or False, lambda c: False, lambda c: end_stream(c),
            lambda c: chunk(c, b"data: {\"half") or end_stream(c)]
    for end in ends:
        def script(stub, req, conn, end=end):
            start_stream(conn)
            chunk(conn, EVENTS[0])
            time.sleep(0.05)
            return end(conn)
        p, d = Stub(), Stub(script)
        with Proxy([p], [d]) as px:
            r = px.post(BOTH[1])
            equal(r.status, 200)
            check(r.body.startswith(EVENTS[0]) and b"[DONE]" not in r.body and b"half" not in r.body,
                  r.body)
            last = r.body[len(EVENTS[0]):]
            check(last.startswith(b"data: ") and last.endswith(b"\n\n"), last)
            equal(json.loads(last[6:])["error"]["code"], 502)
            equal(len(d.asked), 1)
            wait(lambda: len(p.released) == 1)


@test
def servers_own_error_event_passes():
    error = b'data: {"error":{"message":"kv load failed","code":500}}\n\n'
    p = Stub()

    def script(stub, req, conn):
        start_stream(conn)
        chunk(conn, error)
        end_stream(conn)
    with Proxy([p], [Stub(script)]) as px:
        equal(px.post(BOTH[1]).body, error)


@test
def release_is_not_asked_twice_of_who_does_not_know_it():
    p, d = Stub(), Stub(lambda s, r, c: reply(c, 400, REFUSAL))
    p.release_status = 404
    with Proxy([p], [d]) as px:
        px.post(BOTH[0])
        wait(lambda: len(p.released) == 1)
        time.sleep(0.05)
        px.post(BOTH[0])
        time.sleep(0.05)
        equal(len(p.released), 1)


@test
def one_dead_of_two():
    p, p2, d, d2 = Stub(), Stub(), Stub(), Stub()
    with Proxy([p, p2], [d, d2], "--health-check-interval", "0.3") as px:
        d.stop()
        p2.stop()
        equal([px.post(BOTH[i % 2]).status for i in range(20)], [200] * 20)
        d2.stop()
        check(px.post(BOTH[0]).status in (502, 503))
        r = px.post(BOTH[0])
        equal(error_of(r)["code"], 503)
        check(r.getheader("retry-after"))
        equal(px.get("/healthcheck").status, 503)
        d.start()
        wait(lambda: px.post(BOTH[0]).status == 200, 0.3 + 0.5)


@test
def dead_instance_is_left_alone():
    p, d, d2 = Stub(), Stub(), Stub()
    with Proxy([p], [d, d2], "--health-check-interval", "60") as px:
        d.stop()
        d.script = lambda s, r, c: cut(c) or False
        d.start()
        before = len(d.asked)
        rs = at_once([lambda: px.post(BOTH[0])] * 4) + [px.post(BOTH[0]) for _ in range(20)]
        equal([r.status for r in rs], [200] * 24)
        # It listens again but resets: two failures in a row put it out.
        check(len(d.asked) - before <= 6, len(d.asked), before)


@test
def clients_mistakes_harm_nobody():
    def script(stub, req, conn):
        if '"bad"' in req.body:
            return reply(conn, 400, REFUSAL)
        return plain(stub, req, conn)
    p, d = Stub(), Stub(script)
    with Proxy([p], [d]) as px:
        equal([px.post({"prompt": "bad"}).status for _ in range(50)], [400] * 50)
        equal(px.post({"prompt": "good"}).status, 200)


@test
def retry_finds_another_after_5xx():
    p, d = Stub(), Stub()
    bad = Stub(lambda s, r, c: reply(c, 503, b'{"detail":"loading"}'))
    with Proxy([p], [bad, d], "--health-failure-threshold", "3") as px:
        equal([px.post(BOTH[i % 2]).status for i in range(10)], [200] * 10)
        check(px.metric('sluice:proxy_retries_total{role="decode"}') >= 1)
        equal(len(p.asked), 10)  # the KV of the first attempt serves the second
        equal(p.released, [])


@test
def keep_alive_race_is_unseen():
    def script(stub, req, conn):
        plain(stub, req, conn)
        conn.settimeout(0.1)  # read_request then gives up: the server's keep-alive time
    p, d = Stub(script), Stub(script)
    with Proxy([p], [d]) as px:
        for i in range(40):
            equal(px.post(BOTH[i % 2]).status, 200)
            time.sleep(0.095 + 0.00025 * i)
        check(d.connections <= 41, d.connections)
        equal([m for m in px.log if "failed" in m], [])


@test
def release_waits_for_nobody():
    def script(stub, req, conn):
        start_stream(conn)
        chunk(conn, EVENTS[0])
        time.sleep(0.02)
        return False
    p, d = Stub(), Stub(script)
    with Proxy([p], [d]) as px:
        sock = px.connect()
        sock.sendall(raw_post(BOTH[1], headers="Connection: close\r\n"))
        check(b'"error"' in read_all(sock))
        wait(lambda: len(p.released) == 1)
