"""examples/rehearsal/run: the documents' deployments in full shape, with few questions. Its own exit
status says that all were answered alike and that nothing is left."""
import os
import subprocess
import unittest

import harness

RUN = os.path.join(harness.ROOT, "examples", "rehearsal", "run")
# The documents' ports: HTTP of prefill, decode and proxy, and where the decode ranks meet.
PORTS = {"a": [8003, 8080, 8900, 8901, 8902, 12321, 12322, *range(7100, 7116), *range(36000, 36016)],
         "b": [20002, 1025, 8900, *range(5559, 5575), *range(5659, 5675)]}


class Rehearsal(unittest.TestCase):
    def rehearse(self, kind):
        if harness.Config.sanitized:
            self.skipTest("48 processes under a sanitizer need more memory than there may be")
        taken = [p for p in PORTS[kind] if harness.port_taken(p)]
        if taken:
            self.skipTest(f"ports that the documents name are taken: {taken}")
        env = {**os.environ, "SLUICE": harness.Config.sluice, "SLUICE_MODEL": harness.Config.model,
               "QUESTIONS": "6"}
        done = subprocess.run([RUN, kind], env=env, capture_output=True, text=True, timeout=900)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a(self):
        self.rehearse("a")

    def test_b(self):
        self.rehearse("b")


if __name__ == "__main__":
    harness.main()
