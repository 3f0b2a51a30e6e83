#!/usr/bin/env python3
"""Plays scripted instances against `sluice proxy`. No model, no network beyond loopback.

    python3 tests/e2e/proxy/run.py --sluice build/sluice [--only NAME]
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import harness  # noqa: E402
import test_admin  # noqa: E402,F401
import test_errors  # noqa: E402,F401
import test_flow  # noqa: E402,F401
import test_stream  # noqa: E402,F401
import test_together  # noqa: E402,F401

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--sluice", required=True, help="the program under test")
parser.add_argument("--only", default="", help="run the tests whose name has this")
args = parser.parse_args()
harness.SLUICE = os.path.abspath(args.sluice)
sys.exit(1 if harness.run_all(args.only) else 0)
