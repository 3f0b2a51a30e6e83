"""Prompts cut into chunks for two stages (profiling_chunk_config): the tokens of one process whatever the
policy, what the log, the metrics and the timeline say of it, and `sluice calibrate`."""
import glob
import json
import os
import random
import re
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import client
import harness
import texts
from harness import E2E

STEP = 256  # tokens
PP = ["-pp", 2, "--max-num-batched-tokens", STEP]
# Attention counts so much here that chunks of one size would be far from any plan: the planner's work shows
# in short prompts, on a machine of any speed.
FIT = {"a": 4e-3, "b": 0.05, "g": 0.0, "c": 5.0, "kappa": 0.5, "w": 0.0, "error": 0.01}
LENGTHS = [1, 2, 15, 16, 17, 33, 64, 100, 257]
LONG = 700
SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 99}}
COEFFICIENTS = ["a", "b", "w", "g", "c", "kappa"]


def chunks(**values):
    """The option that switches it on, with these values."""
    config = {"scheduler_config": {"profiling_chunk_config": {"enabled": True, **values}}}
    return ["--additional-config", json.dumps(config)]


def run(command, *args, env=None, timeout=60):
    """A command that ends by itself: its status, its output, its log."""
    done = subprocess.run([harness.Config.sluice, command, *map(str, args)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, errors="replace",
                          env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
                          timeout=timeout * harness.Config.slow)
    return done.returncode, done.stdout, done.stderr


def mode(server):
    return [labels["mode"] for labels in server.metrics().labels("sluice:chunk_mode")]


def ask_all(port, prompts, fields, at_once=4):
    def ask(job):
        i, prompt = job
        more = dict(fields, seed=fields["seed"] + i) if "seed" in fields else fields
        return client.tokens(client.complete(port, prompt, 3 + i % 5, **more))

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, enumerate(prompts)))


def read_trace(path):
    with open(path, encoding="ascii") as f:
        return [e for e in json.load(f) if e["ph"] == "X" and e["args"]["prefill"]]


def sizes(steps):
    """Chunks of the one prompt that these steps computed, in order; nothing is left out between them."""
    parts = [e["args"]["requests"][0] for e in steps if e["tid"] == 0]
    at = 0
    for p in parts:
        assert p["history"] == at, parts
        at += p["tokens"]
    return [p["tokens"] for p in parts]


def side_by_side(steps):
    """Share of the chunks that the first stage began before the last one had ended the one before."""
    begun, ended = ([e for e in steps if e["tid"] == s] for s in (0, 1))
    early = [a["ts"] < b["ts"] + b["dur"] for a, b in zip(begun[1:], ended)]
    return sum(early) / len(early)


class WithCache(E2E):
    """Servers whose profiles are kept in a folder of the test's own."""
    model = None
    args = []

    @classmethod
    def setUpFleet(cls):
        cls.folder = tempfile.mkdtemp(prefix="sluice-chunks-")
        cls.addClassCleanup(lambda: subprocess.run(["rm", "-rf", cls.folder], check=True))
        cls.make_model()
        cls.plain = harness.serve("plain", [*cls.args, "--max-num-batched-tokens", 128], model=cls.model)
        fleet = harness.Fleet(cls.plain).start()
        cls.ids = cls.make_ids()
        return fleet

    @classmethod
    def make_model(cls):
        pass

    @classmethod
    def make_ids(cls):
        return texts.corpus(cls.plain.port)

    @classmethod
    def serve(cls, name, args, cache=None):
        server = harness.serve(name, [*cls.args, *args], model=cls.model,
                               env={"SLUICE_CACHE_DIR": cache or cls.cache()})
        with open(server.log, "w", encoding="utf-8"):  # without what an earlier run has said
            return server

    @classmethod
    def cache(cls):
        return tempfile.mkdtemp(dir=cls.folder)

    @classmethod
    def profiled(cls, cache, args=PP):
        """A start that profiles and keeps what it found: delays make the times of a busy machine alike.
        The log."""
        for delay in (0.1, 0.2, 0.5):
            seconds = ["--profile-seconds", 100 * delay, "--step-delay", delay]
            server = cls.serve("profiling", [*args, *seconds, *chunks()], cache)
            harness.Fleet(server).start().stop()
            if glob.glob(os.path.join(cache, "chunks-*.json")):
                return server.text()
        raise AssertionError(f"no profile is kept: {server.log}")

    @classmethod
    def planted(cls, args=PP):
        """A folder with a profile whose numbers are FIT, for what a start says it looks for."""
        cache = cls.cache()
        server = cls.serve("planting", [*args, "--profile-seconds", 0.1, "--log-level", "debug", *chunks()], cache)
        harness.Fleet(server).start().stop()
        name, *key = re.search(r'profile (\S+): model "(.*)", shape "(.*)", host "(.*)"', server.text()).groups()
        kept = dict(zip(("fingerprint", "shape", "host"), key), version=2, points=20, seconds=1.0,
                    link={"ms": 0.0, "ms_per_token": 0.0}, stages=[FIT, FIT])
        with open(os.path.join(cache, name), "w", encoding="ascii") as f:
            json.dump(kept, f)
        return cache


class Chunks(WithCache):
    @classmethod
    def setUpFleet(cls):
        fleet = super().setUpFleet()
        cls.kept = cls.planted()
        return fleet

    def cut(self, policy, **values):
        """A long prompt alone, then many: tokens as of one process. Chunks of the first one, the server. Without
        need_timing nobody finds out that real times are not those of FIT."""
        trace = os.path.join(self.folder, f"{policy}.json")
        server = self.serve(policy, [*PP, "--trace", trace, *chunks(policy=policy, **values)],
                            self.kept if policy != "static" else None)
        long = self.ids[:LONG]
        prompts = texts.slices(self.ids[LONG:], LENGTHS, shared=3)
        with self.running(server):
            want = client.tokens(client.complete(self.plain.port, long, 2))
            self.assertEqual(client.tokens(client.complete(server.port, long, 2)), want)
            self.modes, self.figures = mode(server), server.metrics()
            for what, fields in SAMPLINGS.items():
                with self.subTest(what):
                    self.assertEqual(ask_all(server.port, prompts, fields),
                                     ask_all(self.plain.port, prompts, fields))
            server.wait_idle()
        steps = read_trace(trace)
        ids = {e["args"]["requests"][0]["id"] for e in steps}
        first = [e for e in steps if e["args"]["requests"][0]["id"] == min(ids)]
        found = sizes(first)
        self.assertEqual(sum(found), LONG)
        return found, server

    def test_optimal(self):
        found, server = self.cut("optimal", need_timing=False)
        self.assertEqual(self.modes, ["planned"])
        self.assertLessEqual(max(found), STEP)
        self.assertLess(found[-2], found[0])  # the last one is what is left
        m = self.figures
        self.assertEqual(m.get("sluice:chunk_plans_total"), 1)
        self.assertEqual(m.get("sluice:chunk_plan_chunks"), len(found))
        self.assertEqual(m.get("sluice:chunk_plan_first_tokens"), found[0])
        self.assertEqual(m.get("sluice:chunk_plan_last_tokens"), found[-1])
        self.assertGreaterEqual(m.get("sluice:chunk_plan_seconds"), m.get("sluice:chunk_bound_seconds"))
        self.assertGreater(m.get("sluice:chunk_bound_seconds"), 0)
        self.assertEqual(m.get("sluice:chunk_steps_total"), len(found))
        for name in ("predicted", "measured"):
            self.assertGreater(m.get(f"sluice:chunk_{name}_seconds_total"), 0)
        for stage in "01":
            self.assertGreater(m.get("sluice:stage_busy_seconds_total", stage=stage), 0)
        self.assertGreater(m.get("sluice:stage_bubble_seconds_total", stage="1"), 0)
        self.assertEqual([ls["coefficient"] for ls in m.labels("sluice:chunk_fit")], COEFFICIENTS)
        self.assertRegex(server.text(), "profiling_chunk_config enabled: policy optimal")
        self.assertRegex(server.text(), "stage 1 takes, in ms .* mean error 1.0 %")
        self.assertRegex(server.text(), r"plan for \d+ tokens on 2 stages: \d+ chunks")

    def test_equal_time(self):
        found, server = self.cut("equal-time", need_timing=False, min_chunk=16)
        self.assertEqual(self.modes, ["equal-time"])
        self.assertLess(found[-2], found[0])
        self.assertRegex(server.text(), "profiling_chunk_config enabled: policy equal-time")

    def test_static(self):
        found, server = self.cut("static")
        self.assertEqual(self.modes, ["static"])
        self.assertEqual(found, [STEP] * (LONG // STEP) + [LONG % STEP])
        self.assertNotIn("profiling the pipeline", server.text())

    def test_failed_profile(self):
        """No time to measure in: chunks of one size, the same tokens, and one warning."""
        prompt = self.ids[:240]
        want = client.tokens(client.complete(self.plain.port, prompt, 5))
        late = ["--profile-seconds", 0.1, "--step-delay", 0.15]
        server = self.serve("no-profile", [*PP, *late, *chunks()])
        with self.running(server):
            for _ in range(2):
                self.assertEqual(client.tokens(client.complete(server.port, prompt, 5)), want)
                client.post(server.port, "/reset_prefix_cache", {})
            self.assertEqual(mode(server), ["fallback"])
        self.assertRegex(server.text(), "the profile is not used: .* at least 6 are needed")
        warnings = [line for line in server.text().splitlines() if line.startswith("WARNING")]
        self.assertEqual(len(warnings), 1, warnings)
        self.assertIn("chunks cannot be planned", warnings[0])

    def test_one_request_at_a_time(self):
        """The next chunk is begun before the last stage has ended the one before it, though only one request may
        run; and no chunk waits for a token that is thrown away."""
        prompt = self.ids[:240]
        want = client.tokens(client.complete(self.plain.port, prompt, 3))
        trace = os.path.join(self.folder, "one.json")
        args = ["-pp", 2, "--max-num-batched-tokens", 16, "--max-num-seqs", 1, "--step-delay", 0.05,
                "--trace", trace, *chunks(policy="static")]
        with self.running(self.serve("one", args)) as server:
            self.assertEqual(client.tokens(client.complete(server.port, prompt, 3)), want)
        steps = read_trace(trace)
        self.assertEqual(sizes(steps), [16] * 15)
        self.assertGreater(side_by_side(steps), 0.5)


class DeepSeek(Chunks):
    """Latent attention and experts, with random weights."""
    args = ["--dtype", "float32", "--skip-tokenizer-init"]

    @classmethod
    def make_model(cls):
        source = os.path.join(harness.ROOT, "tests", "data", "golden", "models", "deepseek_v2_tiny",
                              "config.json")
        with open(source, encoding="utf-8") as f:
            config = json.load(f)
        config.update(num_hidden_layers=4, hidden_size=64)
        path = os.path.join(cls.folder, "config.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        cls.model = os.path.join(cls.folder, "model")
        code, _, said = run("mkmodel", path, cls.model, "--quiet")
        assert code == 0, said

    @classmethod
    def make_ids(cls):
        return random.Random(3).choices(range(2, 256), k=2500)

    def test_profile_is_kept(self):
        """The second start measures nothing; another shape, or a file that is none, is measured anew."""
        cache = self.cache()
        first = self.profiled(cache)
        kept, = glob.glob(os.path.join(cache, "chunks-*.json"))
        self.assertIn("profiling the pipeline of 2 stages", first)
        self.assertRegex(first, r"stage 0 takes, in ms .* mean error [\d.]+ % over \d+ chunks")
        self.assertRegex(first, r"passing C tokens on to the next stage takes \S+ \+ \S+ C ms")
        with self.running(self.serve("again", [*PP, *chunks()], cache)) as server:
            self.assertNotIn("profiling the pipeline", server.text())
            self.assertIn(f"using the profile {os.path.basename(kept)} of an earlier start", server.text())
            self.assertEqual(mode(server), ["planned"])
        other = self.profiled(cache, ["-pp", 2, "--max-num-batched-tokens", 2 * STEP])
        self.assertIn("profiling the pipeline of 2 stages", other)
        with open(kept, "w", encoding="ascii") as f:
            f.write('{"version": 1')
        with self.running(self.serve("damaged", [*PP, "--profile-seconds", 1, *chunks()], cache)) as server:
            self.assertRegex(server.text(), f"the profile {os.path.basename(kept)} is not used: ")
            self.assertIn("profiling the pipeline", server.text())

    def test_corrected(self):
        """Measured steps correct the model, which then makes other plans; short prompts go first. No token is
        another for that."""
        config = {"scheduler_config": {"profiling_chunk_config": {"enabled": True},
                                       "short_request_first_config": {"enabled": True, "threshold": 64}}}
        args = [*PP, "--additional-config", json.dumps(config)]
        prompts = texts.slices(self.ids, [*LENGTHS, LONG, 500, LONG], shared=4)
        want = ask_all(self.plain.port, prompts, {})
        with self.running(self.serve("corrected", args, self.kept)) as server:
            before = server.metrics().get("sluice:chunk_fit", coefficient="c")
            for _ in range(4):
                self.assertEqual(ask_all(server.port, prompts, {}), want)
                client.post(server.port, "/reset_prefix_cache", {})
            after = server.metrics().get("sluice:chunk_fit", coefficient="c")
            self.assertNotEqual(before, after)
            server.wait_idle()

    def test_switched_off(self):
        """enabled=false switches everything off, whatever else is set."""
        cache = self.cache()
        wrong = chunks(enabled=False, min_chunk=-1, smooth_factor=7, need_timing=True, no_such_key=1)
        prompt = self.ids[:240]
        want = client.tokens(client.complete(self.plain.port, prompt, 3))
        with self.running(self.serve("off", [*PP, *wrong], cache)) as server:
            self.assertEqual(client.tokens(client.complete(server.port, prompt, 3)), want)
            names = [n for n, _, _ in server.metrics().samples if n.startswith("sluice:chunk_")]
            self.assertEqual(names, [])
            self.assertIn("off, because enabled is false", server.text())
            self.assertNotIn("profiling the pipeline", server.text())
        self.assertEqual(os.listdir(cache), [])

    def test_min_chunk_above_the_step(self):
        args = [*PP, "--profile-seconds", 0.5, *chunks(min_chunk=10 * STEP)]
        with self.running(self.serve("clamped", args)) as server:
            self.assertEqual(client.complete(server.port, self.ids[:240], 2).status, 200)
            self.assertRegex(server.text(), f"WARNING .*min_chunk {10 * STEP} is above --max-num-batched-tokens "
                                            f"{STEP}")

    def test_old_place(self):
        config = {"profiling_chunk_config": {"enabled": True, "policy": "static"}}
        with self.running(self.serve("old", [*PP, "--additional-config", json.dumps(config)])) as server:
            self.assertEqual(mode(server), ["static"])
            self.assertIn("it belongs under scheduler_config now", server.text())

    def test_documented_command(self):
        """The command of the page about it, as it stands there."""
        with open(os.path.join(harness.ROOT, "docs", "chunk-planning.md"), encoding="utf-8") as f:
            text = f.read().replace("\\\n", " ")
        command, = re.findall(r"^ {4}sluice serve MODEL (.*)$", text, re.M)
        with self.running(self.serve("documented", [*shlex.split(command), "--profile-seconds", 1])) as server:
            self.assertIn("profiling the pipeline of 2 stages", server.text())
            want = client.tokens(client.complete(self.plain.port, self.ids[:240], 3))
            self.assertEqual(client.tokens(client.complete(server.port, self.ids[:240], 3)), want)

    def test_calibrate(self):
        with self.running(self.serve("calibrated", [*PP, *chunks()], self.kept)) as server:
            url = f"http://{client.HOST}:{server.port}"
            code, table, said = run("calibrate", "--url", url, "--prompt-tokens", LONG)
            self.assertEqual(code, 0, said)
            rows = re.findall(r"^ +(\d) +([\d.]+) .* [\d.]+%$", table, re.M)
            self.assertEqual([n for n, _ in rows], list("12345"), table)
            self.assertRegex(table, r"(?m)^before .* C \(H \+ 0.5 C\) .* mode planned$")
            self.assertRegex(table, r"(?m)^after +\S+ C \(H \+ 0.5 C\) ")
            code, out, said = run("calibrate", "--url", url, "--num-requests", 2, "--json")
            self.assertEqual(code, 0, said)
            found = json.loads(out)
            self.assertEqual(found["prompt_tokens"], 2303)
            self.assertEqual(len(found["requests"]), 2)
            for row in found["requests"]:  # nothing was in the prefix cache
                self.assertGreaterEqual(row["chunks"], 2303 // STEP)
                self.assertGreater(row["ttft_s"], 0)
                self.assertGreater(row["measured_s"], 0)
            # Times here have little to do with FIT: it has learned.
            self.assertNotEqual(found["after"]["c"], FIT["c"])
            self.assertEqual(server.metrics().get("vllm:prefix_cache_hits_total"), 0)

    def test_calibrate_what_cannot_be(self):
        plain = f"http://{client.HOST}:{self.plain.port}"
        nobody = f"http://{client.HOST}:{harness.free_ports(1)[0]}"
        for args, status, says in [
                (["--url", plain], 1, "does not plan chunks"),
                (["--url", nobody], 1, "did not answer"),
                (["--url", plain, "--prompt-tokens", 100000], 2, "more than the context of 2304"),
                (["--url", "ftp://x:1"], 2, "ftp"),
                ([], 2, "--url is needed"),
                (["--url", plain, "--num-requests", 0], 2, "--num-requests")]:
            with self.subTest(str(args)):
                code, out, said = run("calibrate", *args)
                self.assertEqual(code, status, said)
                self.assertIn(says, said)
                self.assertEqual(out, "")

    def test_calibrate_with_key(self):
        args = [*PP, "--api-key", "opensesame", *chunks(policy="static")]
        with self.running(self.serve("key", args)) as server:
            asked = ["--url", f"http://{client.HOST}:{server.port}", "--prompt-tokens", 100]
            code, _, said = run("calibrate", *asked)
            self.assertEqual(code, 1, said)
            self.assertIn("answers 401", said)
            code, table, said = run("calibrate", *asked, env={"VLLM_API_KEY": "opensesame"})
            self.assertEqual(code, 0, said)
            self.assertIn("mode static", table)
            self.assertNotIn("opensesame", said + table)


class Mistakes(E2E):
    """Each names its key, and nothing is started."""

    def refused(self, says, args, env=None):
        with self.subTest(says):
            code, _, said = run("serve", harness.Config.model, "--host", client.HOST, "--port", 0,
                                *harness.SIZE, *args, env=env)
            self.assertEqual(code, 2, said)
            self.assertIn(says, said)
            self.assertNotIn("memory before loading", said)

    def test_values(self):
        for says, values in [
                ("smooth_factor is 0;", {"smooth_factor": 0}),
                ("smooth_factor is 1.5;", {"smooth_factor": 1.5}),
                ("smooth_factor is the text", {"smooth_factor": "1.0"}),
                ("min_chunk is 0;", {"min_chunk": 0}),
                ("min_chunk is -4;", {"min_chunk": -4}),
                ("min_chunk is 64.5;", {"min_chunk": 64.5}),
                ("max_fit_chunk is 5;", {"max_fit_chunk": 5}),
                ("need_timing is the text \"true\"", {"need_timing": "true"}),
                ("enabled is the text \"True\"", {"enabled": "True"}),
                ("policy is 'best'", {"policy": "best"}),
                ("unknown key 'smoth_factor'; did you mean 'smooth_factor'?", {"smoth_factor": 1}),
                ("'smooth\u2013factor' has a dash", {"smooth\u2013factor": 1}),
                ("'min-chunk' has a dash", {"min-chunk": 512})]:
            self.refused(says, [*PP, *chunks(**values)])

    def test_names(self):
        for name in ("profiling\u2013chunk_config", "profiling-chunk-config"):
            config = json.dumps({"scheduler_config": {name: {"enabled": True}}}, ensure_ascii=False)
            self.refused(f"'{name}' has a dash", [*PP, "--additional-config", config])
        config = json.dumps({"scheduler_config": {"profiling_chunk_config": True}})
        self.refused("profiling_chunk_config must be an object", [*PP, "--additional-config", config])

    def test_other_options(self):
        self.refused("--pipeline-parallel-size is 1", chunks())
        self.refused("needs chunked prefill", ["-pp", 2, "--no-enable-chunked-prefill",
                                               "--max-num-batched-tokens", 4096, *chunks()])
        self.refused("balance scheduling", [*PP, *chunks()], {"VLLM_ASCEND_BALANCE_SCHEDULING": "1"})

    def test_short_first(self):
        for says, values in [("threshold is -1;", {"threshold": -1}),
                             ("unknown key 'limit'", {"limit": 1}),
                             ("enabled is the text", {"enabled": "true"})]:
            config = {"scheduler_config": {"short_request_first_config": {"enabled": True, **values}}}
            self.refused(says, ["--additional-config", json.dumps(config)])


if __name__ == "__main__":
    harness.main()
