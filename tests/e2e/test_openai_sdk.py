"""The openai Python SDK (pinned in requirements.txt) against the proxy."""
import unittest

import harness
from harness import E2E, MODEL_NAME

try:
    import openai
except ImportError:
    openai = None

MESSAGES = [{"role": "user", "content": "Name three colours."}]


class OpenAiSdk(E2E):
    @classmethod
    def setUpFleet(cls):
        if openai is None:
            raise unittest.SkipTest("openai is not installed (scripts/test sees to that)")
        fleet = harness.deployment()
        cls.api = openai.OpenAI(base_url=f"http://127.0.0.1:{fleet.proxy.port}/v1", api_key="EMPTY",
                                max_retries=0, timeout=60)
        return fleet

    @classmethod
    def tearDownClass(cls):
        cls.api.close()
        super().tearDownClass()

    def chat(self, **more):
        return self.api.chat.completions.create(model=MODEL_NAME, messages=MESSAGES, temperature=0,
                                                max_tokens=20, **more)

    def test_models(self):
        models = list(self.api.models.list())
        self.assertEqual([m.id for m in models], [MODEL_NAME])
        self.assertEqual(models[0].object, "model")

    def test_completion(self):
        reply = self.api.completions.create(model=MODEL_NAME, prompt="The capital of France is",
                                            max_tokens=3, temperature=0)
        self.assertEqual(reply.object, "text_completion")
        self.assertEqual(reply.choices[0].text, " Paris.\n")
        self.assertEqual(reply.choices[0].finish_reason, "length")
        self.assertEqual((reply.usage.prompt_tokens, reply.usage.completion_tokens), (5, 3))

    def test_completion_of_several_prompts(self):
        reply = self.api.completions.create(model=MODEL_NAME, prompt=["The capital of France is", "1, 2, 3,"],
                                            max_tokens=4, temperature=0)
        self.assertEqual([c.index for c in reply.choices], [0, 1])
        self.assertIn("Paris", reply.choices[0].text)
        self.assertIn("4", reply.choices[1].text)

    def test_completion_stream(self):
        whole = self.api.completions.create(model=MODEL_NAME, prompt="Once upon a time", max_tokens=12,
                                            temperature=0)
        parts = self.api.completions.create(model=MODEL_NAME, prompt="Once upon a time", max_tokens=12,
                                            temperature=0, stream=True)
        self.assertEqual("".join(p.choices[0].text for p in parts), whole.choices[0].text)

    def test_chat(self):
        reply = self.chat()
        self.assertTrue(reply.id.startswith("chatcmpl-"))
        self.assertEqual(reply.choices[0].message.role, "assistant")
        self.assertTrue(reply.choices[0].message.content)
        self.assertEqual(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens)

    def test_chat_stream(self):
        whole = self.chat()
        text, finish, usage, roles = "", None, None, []
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            if chunk.choices:
                choice = chunk.choices[0]
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
                roles += [choice.delta.role] if choice.delta.role else []
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(finish, whole.choices[0].finish_reason)
        self.assertEqual(roles, ["assistant"])
        self.assertEqual((usage.prompt_tokens, usage.completion_tokens),
                         (whole.usage.prompt_tokens, whole.usage.completion_tokens))

    def test_logprobs(self):
        reply = self.chat(logprobs=True, top_logprobs=2)
        content = reply.choices[0].logprobs.content
        self.assertEqual(len(content), reply.usage.completion_tokens)
        for one in content:
            self.assertLessEqual(one.logprob, 0)
            self.assertEqual(len(one.top_logprobs), 2)
        text = b"".join(bytes(one.bytes) for one in content).decode()
        self.assertTrue(text.startswith(reply.choices[0].message.content))

    def test_errors_by_class(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.api.chat.completions.create(model="nope", messages=MESSAGES)
        self.assertEqual(caught.exception.param, "model")
        for field, value in (("temperature", -1), ("top_p", 2), ("max_tokens", 0), ("n", 0)):
            with self.subTest(field), self.assertRaises(openai.BadRequestError) as caught:
                self.api.chat.completions.create(model=MODEL_NAME, messages=MESSAGES, **{field: value})
            self.assertEqual(caught.exception.param, field)

    def test_request_id(self):
        """The client's id comes back, in the header and in the reply's id."""
        raw = self.api.chat.completions.with_raw_response.create(
            model=MODEL_NAME, messages=MESSAGES, max_tokens=1, extra_headers={"X-Request-Id": "abc123"})
        self.assertEqual(raw.parse().id, "chatcmpl-abc123")

    def test_cached_tokens(self):
        """What P had cached is told as such: 0 for a new prompt, whole blocks the second time."""
        prompt = list(range(1000, 1040))
        seen = []
        for _ in range(2):
            reply = self.api.completions.create(model=MODEL_NAME, prompt=prompt, max_tokens=2)
            self.assertEqual(reply.usage.prompt_tokens, 40)
            self.assertEqual(reply.usage.completion_tokens, 2)
            seen.append(reply.usage.prompt_tokens_details.cached_tokens)
        self.assertEqual(seen, [0, 32])


if __name__ == "__main__":
    harness.main()
