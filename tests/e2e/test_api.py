"""The HTTP API's edges, asked of one plain server and again through the proxy."""
import client
import harness
import texts
from harness import E2E

LIMIT = 256  # --max-model-len
SIZE = ["--max-model-len", LIMIT, "--num-gpu-blocks-override", 128, "--block-size", 16]
STORY = "Once upon a time there was a small robot who"
MIXED = "안녕하세요 😀 Hello 🎉 한국어 😀 " * 2 + "안녕하세요 😀 Hello 🎉"


class ApiCase(E2E):
    """`port` is where the questions go."""

    @classmethod
    def setUpFleet(cls):
        raise NotImplementedError

    def post(self, path, body, **kw):
        return client.post(self.port, path, body, **kw)

    def completion(self, prompt=STORY, n=20, **fields):
        return client.complete(self.port, prompt, n, **fields)

    def stream(self, prompt=STORY, n=20, path="/v1/completions", **fields):
        body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, **fields}
        if path.endswith("chat/completions"):
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        with client.Stream(self.port, path, body) as stream:
            events = list(stream)
            self.assertEqual(stream.status, 200)
            self.assertEqual(stream.headers["Content-Type"], "text/event-stream; charset=utf-8")
            self.assertTrue(stream.done, "[DONE] is missing")
            self.assertEqual(stream.raw[-1], b"[DONE]")
        return events

    def streamed_text(self, *args, **fields):
        return "".join(c["text"] for e in self.stream(*args, **fields) for c in e["choices"])


class Limits:
    """Prompt and output against the context length."""

    def test_sum_equal_to_the_limit(self):
        ids = self.ids[:LIMIT - 4]
        reply = self.completion(ids, 4)
        self.assertEqual(reply.json()["choices"][0]["finish_reason"], "length")
        self.assertEqual(len(client.tokens(reply)), 4)

    def test_sum_above_the_limit(self):
        for stream in (False, True):
            reply = self.completion(self.ids[:LIMIT - 4], 5, stream=stream)
            self.expect(reply, 400)
            message = reply.json()["error"]["message"]
            for number in (LIMIT, LIMIT - 4, 5):
                self.assertIn(str(number), message)

    def test_no_limit_asked_for(self):
        reply = self.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Count to a thousand."}], "temperature": 0,
            "ignore_eos": True})
        usage = reply.json()["usage"]
        self.assertEqual(usage["total_tokens"], LIMIT)

    def test_room_for_one(self):
        reply = self.completion(self.ids[:LIMIT - 1], 1)
        self.assertEqual(len(client.tokens(reply)), 1)

    def test_prompt_fills_the_context(self):
        self.expect(self.completion(self.ids[:LIMIT], 1), 400)
        self.expect(self.completion(self.ids[:LIMIT + 50], 1), 400)
        self.assertEqual(self.completion(n=2).status, 200)


class Table:
    """Values that must be refused with the right parameter, and do no harm."""
    BAD = [
        ("temperature", -0.1), ("temperature", "hot"), ("top_p", 0), ("top_p", 1.1), ("top_p", -1),
        ("min_p", -0.1), ("min_p", 1.5), ("top_k", -2), ("presence_penalty", 2.1),
        ("presence_penalty", -2.1), ("frequency_penalty", 3), ("frequency_penalty", -3),
        ("repetition_penalty", 0), ("repetition_penalty", -1), ("n", 0), ("n", -1), ("max_tokens", -1),
        ("max_tokens", "many"), ("min_tokens", -1), ("min_tokens", 1000), ("logprobs", 21),
        ("logprobs", -5), ("stop", [""]), ("stop", ""), ("stop", 5),
        ("logit_bias", {"49152": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"x": 1}),
        ("stop_token_ids", [49152]), ("stop_token_ids", [-1]), ("stream_options", {"include_usage": True}),
        ("prompt", [49152]), ("prompt", [-1]), ("prompt", []), ("prompt", ""), ("prompt", None),
        ("cache_salt", ""), ("seed", "x"), ("suffix", "y"), ("ignore_eos", "maybe"),
    ]
    # Not JSON, or numbers that Python's json would not write.
    RAW = [(b'{"prompt":"x","temperature":1e999}', None), (b'{"prompt":"x","temperature":NaN}', None),
           (b'{"prompt":', None), (b"", None), (b"[]", None), (b'{"prompt":"\xff\xfe"}', None)]

    def test_each_is_refused(self):
        want = client.tokens(self.completion(n=4))
        for field, value in self.BAD:
            with self.subTest(f"{field}={value!r}"):
                reply = self.post("/v1/completions", {"prompt": STORY, "max_tokens": 4, field: value})
                self.expect(reply, 400)
                param = reply.json()["error"]["param"]
                self.assertIn(field, param or "", reply)
                self.assertEqual(client.tokens(self.completion(n=4)), want)

    def test_bodies_that_are_not_json(self):
        for body, _ in self.RAW:
            with self.subTest(body):
                self.expect(self.post("/v1/completions", body), 400)
        self.assertEqual(self.completion(n=1).status, 200)

    def test_chat_is_refused(self):
        good = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        for more, param in (({"messages": None}, "messages"), ({"messages": []}, "messages"),
                            ({"messages": [{"role": "user", "content": 5}]}, "messages"),
                            ({"max_tokens": 0}, "max_tokens"), ({"top_logprobs": 2}, "top_logprobs"),
                            ({"logprobs": True, "top_logprobs": 21}, "top_logprobs")):
            with self.subTest(more):
                reply = self.post("/v1/chat/completions", {**good, **more})
                self.expect(reply, 400)
                self.assertIn(param, reply.json()["error"]["param"] or "", reply)

    def test_routes(self):
        self.assertEqual(self.post("/v1/nope", {}).status, 404)
        wrong = client.get(self.port, "/v1/completions")
        self.assertEqual(wrong.status, 405)
        self.assertIn("POST", wrong.headers["Allow"])
        self.expect(self.post("/v1/completions", {"model": "nope", "prompt": "x"}), 404, "model")


class Stops:
    """Stop strings: held back until they cannot match, cut out, the same streamed and whole."""

    def test_cut_anywhere(self):
        text = self.completion(n=40).json()["choices"][0]["text"]
        for at in range(0, len(text) - 6, 11):
            stop = text[at:at + 5]
            want = text[:text.find(stop)]
            with self.subTest(stop):
                choice = self.completion(n=40, stop=[stop]).json()["choices"][0]
                self.assertEqual((choice["text"], choice["finish_reason"], choice["stop_reason"]),
                                 (want, "stop", stop))
                self.assertEqual(self.streamed_text(n=40, stop=[stop]), want)

    def test_included(self):
        text = self.completion(n=40).json()["choices"][0]["text"]
        stop = text[10:15]
        got = self.completion(n=40, stop=[stop], include_stop_str_in_output=True).json()["choices"][0]["text"]
        self.assertEqual(got, text[:text.find(stop) + len(stop)])

    def test_half_a_match_is_flushed(self):
        text = self.completion(n=40).json()["choices"][0]["text"]
        stop = text[-4:] + "\u00a4"
        self.assertEqual(self.streamed_text(n=40, stop=[stop]), text)
        choice = self.completion(n=40, stop=[stop]).json()["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), (text, "length"))

    def test_the_first_of_several(self):
        text = self.completion(n=40).json()["choices"][0]["text"]
        early, late = text[8:12], text[20:24]
        choice = self.completion(n=40, stop=[late, "\u00a4", early]).json()["choices"][0]
        self.assertEqual(choice["text"], text[:min(text.find(early), text.find(late))])

    def test_stop_id(self):
        ids = client.tokens(self.completion(n=10))
        choice = self.completion(n=10, stop_token_ids=[ids[3]]).json()["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", ids[3]))
        self.assertEqual(choice["token_ids"], ids[:ids.index(ids[3]) + 1])


class Usage:
    def test_in_streams(self):
        for path in ("/v1/completions", "/v1/chat/completions"):
            for options, wanted in ((None, False), ({}, False), ({"include_usage": True}, True)):
                with self.subTest(f"{path} {options}"):
                    more = {} if options is None else {"stream_options": options}
                    events = self.stream(n=5, path=path, **more)
                    with_usage = [e for e in events if e.get("usage")]
                    self.assertEqual(len(with_usage), int(wanted))
                    if wanted:
                        self.assertEqual(events[-1]["choices"], [])
                        self.assertEqual(events[-1]["usage"]["completion_tokens"], 5)

    def test_role_comes_with_the_first_token(self):
        events = self.stream(n=3, path="/v1/chat/completions")
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "length")


class Characters:
    """Characters whose bytes span several tokens."""

    def test_streams_equal_whole_texts(self):
        for n in range(1, 28, 2):
            with self.subTest(n):
                choice = self.completion(MIXED, n).json()["choices"][0]
                self.assertEqual(self.streamed_text(MIXED, n), choice["text"])
                self.assertNotIn("\ufffd", choice["text"][:-1].rstrip("\ufffd"))

    def test_echo(self):
        reply = self.completion(MIXED, 1, echo=True, logprobs=None)
        if reply.status != 400:
            self.assertTrue(reply.json()["choices"][0]["text"].startswith(MIXED))


class Logprobs:
    def test_chat(self):
        body = {"messages": [{"role": "user", "content": "Say hi \U0001f600"}], "max_tokens": 8,
                "temperature": 0, "logprobs": True}
        whole = self.post("/v1/chat/completions", body).json()
        content = whole["choices"][0]["logprobs"]["content"]
        self.assertEqual(len(content), whole["usage"]["completion_tokens"])
        for one in content:
            self.assertEqual(set(one), {"token", "logprob", "bytes", "top_logprobs"})
            self.assertEqual(one["top_logprobs"], [])
        with client.Stream(self.port, "/v1/chat/completions", body) as stream:
            parts = [one for e in stream for c in e["choices"] if c.get("logprobs")
                     for one in c["logprobs"]["content"]]
        self.assertEqual(parts, content)

    def echo(self, port):
        return client.complete(port, self.ids[40:80], 1, echo=True, logprobs=1, timeout=30)

    def test_echo_cold_and_cached(self):
        """Log-probabilities of the prompt: as on one plain server, or refused; cold and cached."""
        want = self.echo(self.plain.port).json()["choices"][0]["logprobs"]["token_logprobs"]
        self.assertEqual(len(want), 41)
        self.assertIsNone(want[0])
        for _ in ("cold", "cached"):
            reply = self.echo(self.port)
            if reply.status == 400 and self.port != self.plain.port:
                self.expect(reply, 400)
                continue
            got = reply.json()["choices"][0]["logprobs"]["token_logprobs"]
            self.assertEqual(len(got), len(want))
            self.assertLess(max(abs(a - b) for a, b in zip(got[1:], want[1:])), 1e-4)
        self.assertEqual(self.completion(n=1).status, 200)


class PlainServer(Limits, Table, Stops, Usage, Characters, Logprobs, ApiCase):
    @classmethod
    def setUpFleet(cls):
        cls.plain = harness.serve("plain", size=SIZE)
        fleet = harness.Fleet(cls.plain).start()
        cls.port, cls.ids = cls.plain.port, corpus(cls.plain.port)
        return fleet


class ThroughProxy(Limits, Table, Stops, Usage, Characters, Logprobs, ApiCase):
    @classmethod
    def setUpFleet(cls):
        fleet = harness.deployment(p_size=SIZE, d_size=SIZE)
        cls.plain = fleet.add(harness.serve("plain", size=SIZE).start().wait_ready())
        cls.port, cls.ids = fleet.proxy.port, corpus(cls.plain.port)
        return fleet

    def test_nothing_is_left(self):
        self.fleet.wait_idle()


def corpus(port):
    """Enough ids to overfill the context."""
    return texts.corpus(port, piece=400, enough=LIMIT + 60)


if __name__ == "__main__":
    harness.main()
