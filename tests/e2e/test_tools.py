"""sluice mkmodel and sluice quantize as commands: exit status, what they print, and that what they write
is served."""
import json
import os
import shutil
import subprocess
import tempfile
import unittest

import client
import harness

LLAMA = os.path.join(harness.ROOT, "tests", "data", "golden", "models", "llama_tiny")


def sluice(*args):
    return subprocess.run([harness.Config.sluice, *map(str, args)], capture_output=True, text=True,
                          timeout=120)


class Tools(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="sluice-tools-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def ran(self, *args):
        done = sluice(*args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def completion(self, model, prompt, args=()):
        server = harness.serve("tools", ["--dtype", "float32", *args], model=model,
                               size=["--max-model-len", 256]).start().wait_ready()
        try:
            reply = client.post(server.port, "/v1/completions",
                                {"prompt": prompt, "max_tokens": 8, "temperature": 0,
                                 "ignore_eos": True, "return_token_ids": True})
            return reply.json()["choices"][0]
        finally:
            server.stop()

    def test_made_model_is_served(self):
        for layout in ("bf16", "fp8", "w8a8"):
            done = self.ran("mkmodel", os.path.join(LLAMA, "config.json"), self.path(layout),
                            "--layout", layout, "--seed", 5)
            self.assertIn("writing weights", done.stderr)
            choice = self.completion(self.path(layout), [5, 17, 90, 33], ["--skip-tokenizer-init"])
            self.assertEqual(len(choice["token_ids"]), 8)

    def test_quantized_model_is_served(self):
        self.ran("quantize", LLAMA, self.path("q"), "--static")
        want = self.completion(LLAMA, "Hello there")
        got = self.completion(self.path("q"), "Hello there")
        self.assertEqual(got["prompt_token_ids"], want["prompt_token_ids"])
        self.assertEqual(len(got["token_ids"]), 8)

    def test_report(self):
        text = self.path("text.txt")
        with open(text, "w", encoding="utf-8") as f:
            f.write("The quick brown fox jumps over the lazy dog. " * 8)
        done = self.ran("quantize", LLAMA, self.path("q"), "--report-text", text, "--quiet")
        lines = done.stdout.splitlines()
        self.assertEqual(sum(line.startswith("layer ") for line in lines), 3)
        self.assertIn("down_proj", lines[1])
        self.assertRegex(lines[-1], r"^perplexity of \d+ tokens: [\d.]+ in float32, [\d.]+ quantized")
        self.assertNotIn("writing", done.stderr)

    def test_float_above(self):
        done = self.ran("quantize", LLAMA, self.path("q"), "--float-above", "0.000001", "--quiet")
        self.assertIn("left in bfloat16", done.stderr)
        with open(self.path("q/quant_model_description.json"), encoding="utf-8") as f:
            self.assertNotIn("W8A8_DYNAMIC", json.load(f).values())

    def test_mistakes(self):
        config = os.path.join(LLAMA, "config.json")
        cases = [
            (["mkmodel", config], 2, "sluice mkmodel CONFIG.json OUT"),
            (["mkmodel", config, self.path("m"), "--layout", "int4"], 2, "bf16"),
            (["mkmodel", config, self.path("m"), "--max-shard-size", "big"], 2, "--max-shard-size big"),
            (["mkmodel", self.path("none.json"), self.path("m")], 1, "none.json"),
            (["mkmodel", config, LLAMA], 1, "--force"),
            (["quantize", LLAMA], 2, "sluice quantize IN OUT"),
            (["quantize", LLAMA, LLAMA], 2, "both what is read and what is written"),
            (["quantize", self.path("none"), self.path("q")], 1, "no such model"),
            (["quantize", LLAMA, self.path("q"), "--alpha", "2"], 2, "--alpha"),
            (["quantize", LLAMA, self.path("q"), "--calibration", self.path("none.txt")], 1, "none.txt"),
        ]
        for args, status, part in cases:
            with self.subTest(args=args):
                done = sluice(*args)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(part, done.stderr)
                self.assertFalse(os.path.exists(self.path("m")) or os.path.exists(self.path("q")))


if __name__ == "__main__":
    harness.main()
