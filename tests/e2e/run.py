#!/usr/bin/env python3
"""Runs the end-to-end tests with a line each and a summary.

Usage: tests/e2e/run.py [--build BUILD] [--model MODEL] [--logs DIR] [--json FILE] [FILE|CASE]...

Without names: every test_*.py here; under a sanitizer, the part that says something there.
"""
import argparse
import glob
import json
import os
import sys
import time
import unittest

import harness

HERE = os.path.dirname(os.path.abspath(__file__))
SANITIZED = ["test_faults", "test_launch.Launch", "test_models.DeepseekV3MiniW8a8",
             "test_models.WithoutTokenizer", "test_operations.Stopping", "test_pd_equal.BlockSizes",
             "test_pd_equal.PdEqual", "test_ranks.Deaths", "test_ranks.Refused",
             "test_scheduler", "test_soak"]


class Lines(unittest.TestResult):
    """One line a test, when it ends; what failed is shown at once, with where the servers' logs are."""

    def __init__(self):
        super().__init__()
        self.outcomes, self.began = [], 0.0

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()

    def line(self, test, outcome, detail=""):
        seconds = time.monotonic() - self.began if self.began else 0
        name = test.id() if hasattr(test, "id") else str(test)
        self.outcomes.append((name, outcome))
        print(f"{outcome:8}{seconds:6.1f} s  {name}", flush=True)
        if detail:
            print("\n".join("  | " + row for row in detail.splitlines()[-60:]))
            print(f"  | servers' logs: {harness.Config.logs}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.line(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.line(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.line(test, "FAILED", self.failures[-1][1])

    def addError(self, test, err):  # also a class's setUp or tearDown
        super().addError(test, err)
        self.line(test, "FAILED", self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.line(subtest, "FAILED", self._exc_info_to_string(err, subtest))


def names(chosen):
    if not chosen and harness.Config.sanitized:
        return SANITIZED
    if not chosen:
        return sorted(os.path.basename(p)[:-3] for p in glob.glob(os.path.join(HERE, "test_*.py")))
    return [name[:-3] if name.endswith(".py") else name for name in chosen]


def main():
    parser = argparse.ArgumentParser(usage=__doc__.strip())
    harness.add_arguments(parser)
    parser.add_argument("--json")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    harness.configure(args)
    sys.path.insert(0, HERE)
    suite = unittest.defaultTestLoader.loadTestsFromNames(names(args.names))
    result = Lines()
    began = time.monotonic()
    suite.run(result)
    failed = sum(outcome == "FAILED" for _, outcome in result.outcomes)
    passed = sum(outcome == "ok" for _, outcome in result.outcomes)
    print(f"end to end: {passed} passed, {failed} failed, {time.monotonic() - began:.0f} s")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(result.outcomes, f)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
