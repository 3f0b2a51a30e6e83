"""The two legs: what each is sent and what the client gets (PX-04, PX-07, PX-11, PX-M3, KT-06)."""
import json

from harness import Proxy, at_once, check, equal, error_of, test, wait
from stub import KV, Stub, plain, reply


@test
def legs_get_their_bodies():
    p, d = Stub(), Stub()
    # Numbers and spaces that a decoder and encoder would not keep.
    body = ('{ "model":"m", "prompt":"x\\u0041", "min_tokens": 50,"max_completion_tokens":100, '
            '"seed":12345678901234567890,"temperature":0.10, "stream":true,'
            '"stream_options":{"include_usage":true}, "vendor":{"b":[1e400, 2.0], "a":null} }')
    with Proxy([p], [d]) as px:
        equal(px.post(body, headers={"X-Request-Id": "abc"}).status, 200)
        sent = p.asked[0].json
        equal((sent["max_tokens"], sent["max_completion_tokens"], sent["stream"]), (1, 1, False))
        check("min_tokens" not in sent and "stream_options" not in sent, sent)
        equal(sent["kv_transfer_params"],
              {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
               "remote_block_ids": None, "remote_host": None, "remote_port": None})
        equal(p.asked[0].body.count("12345678901234567890"), 1)
        equal(d.asked[0].body, body[:-2] + ' ,"kv_transfer_params":' + KV % "abc" + "}")
        equal([s.asked[0].headers["x-request-id"] for s in (p, d)], ["abc", "abc"])


@test
def absent_limits_stay_absent():
    p, d = Stub(), Stub()
    body = '{"messages":[{"role":"user","content":"hi"}],"kv_transfer_params":{"remote_host":"evil"}}'
    with Proxy([p], [d]) as px:
        equal(px.post(body, "/v1/chat/completions").status, 200)
        equal(p.asked[0].json["max_tokens"], 1)
        check("max_completion_tokens" not in p.asked[0].json, p.asked[0].body)
        check("max_tokens" not in d.asked[0].json, d.asked[0].body)
        check("evil" not in d.asked[0].body + p.asked[0].body, d.asked[0].body)
        equal(d.asked[0].path, "/v1/chat/completions")


@test
def headers_pass():
    p = Stub()
    d = Stub(lambda s, r, c: reply(c, 200, b'{"choices":[]}', headers="X-Extra: 7\r\nServer: u\r\n"))
    with Proxy([p], [d]) as px:
        r = px.post({"prompt": "a"}, headers={"Authorization": "Bearer k", "X-Vendor": "v",
                                              "Accept-Encoding": "gzip", "Keep-Alive": "9"})
        for s in (p, d):
            h = s.asked[0].headers
            equal((h["authorization"], h["x-vendor"]), ("Bearer k", "v"))
            check("accept-encoding" not in h and "keep-alive" not in h, h)
        equal((r.getheader("x-extra"), r.getheader("server")), ("7", "u"))
        equal(r.getheader("x-request-id"), d.asked[0].headers["x-request-id"])
        equal(r.getheader("content-type"), "application/json")


@test
def cached_tokens_are_those_of_prefill():
    p, d = Stub(), Stub()
    with Proxy([p], [d]) as px:
        for cached in (0, 32):
            p.cached = cached
            usage = json.loads(px.post({"prompt": "a"}).body)["usage"]
            equal((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]),
                  (40, 3, 43))
            equal(usage["prompt_tokens_details"], {"cached_tokens": cached, "x": 1.5})
            text = px.post({"prompt": "a", "stream": True}).body.decode()
            equal(text.count('"cached_tokens":%d,"x":1.50' % cached), 1)
            equal(text.count("cached_tokens"), 1)


@test
def usage_without_details_gets_them():
    p = Stub()
    d = Stub(lambda s, r, c: reply(c, 200, b'{"usage":{"prompt_tokens":40,'
                                           b'"prompt_tokens_details":null}, "z": 1.0}'))
    with Proxy([p], [d]) as px:
        equal(px.post({"prompt": "a"}).body,
              b'{"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":0}}, "z": 1.0}')


@test
def several_choices_are_prefilled_once():
    p, d = Stub(), Stub()
    with Proxy([p], [d]) as px:
        equal(px.post({"prompt": "a", "n": 3, "best_of": 3}).status, 200)
        equal([r.json["n"] for r in p.asked + d.asked], [1, 3])
        check("best_of" not in p.asked[0].json, p.asked[0].body)


@test
def what_cannot_be_handed_over_goes_to_decode_alone():
    p, d = Stub(), Stub()
    with Proxy([p], [d]) as px:
        for extra in ({"prompt": ["a", "b"]}, {"prompt": [[1], [2]]},
                      {"prompt": "a", "echo": True, "logprobs": 0},
                      {"prompt": "a", "prompt_logprobs": 0}):
            equal(px.post(extra).status, 200)
            equal(d.asked[-1].json, extra)
        equal(len(p.asked), 0)
        for one in ({"prompt": ["a"]}, {"prompt": [1, 2]}, {"prompt": [[1, 2]]}):
            equal(px.post(one).status, 200)
        equal(len(p.asked), 3)


@test
def without_prefill_instances_it_relays():
    d = Stub()
    with Proxy([], [d]) as px:
        r = px.post({"prompt": "a"})
        equal(json.loads(r.body)["usage"]["prompt_tokens_details"]["cached_tokens"], 40)
        equal(d.asked[0].body, '{"prompt": "a"}')
        equal(px.get("/healthcheck").status, 200)


@test
def prefill_without_connector_still_answers():
    p = Stub(lambda s, r, c: reply(c, 200, b'{"choices":[]}'))
    d = Stub()
    with Proxy([p], [d]) as px:
        equal(px.post({"prompt": "a"}).status, 200)
        check("kv_transfer_params" not in d.asked[0].json, d.asked[0].body)


@test
def equal_request_ids_are_told_apart():
    def slow(stub, req, conn):
        wait(lambda: len(d.asked) + len(d2.asked) == 8)
        return plain(stub, req, conn)
    p, d, d2 = Stub(), Stub(slow), Stub(slow)
    with Proxy([p], [d, d2]) as px:
        rs = at_once([lambda: px.post({"prompt": "a"}, headers={"X-Request-Id": "x"})] * 8)
        equal([r.status for r in rs], [200] * 8)
        ids = sorted(r.headers["x-request-id"] for r in p.asked)
        equal(ids, sorted(r.headers["x-request-id"] for r in d.asked + d2.asked))
        equal(len(set(ids)), 8)
        check(all(i == "x" or i.startswith("x-") for i in ids), ids)


@test
def malformed_requests():
    p, d = Stub(), Stub()
    with Proxy([p], [d]) as px:
        for body in ("", "[1]", "{", '{"a":1}x', '{"a":01}', "{'a':1}", "[" * 1000,
                     '{"a":' + "[" * 200 + "]" * 200 + "}"):
            e = error_of(px.post(body))
            equal(e["code"], 400)
            check("JSON" in e["message"], e)
        equal(len(p.requests) + len(d.requests), 0)
