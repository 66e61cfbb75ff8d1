"""Fail on skipped tests whose reason nobody allowed: skips.py REPORT.xml ALLOWED.txt [--allow REASON]..."""

import argparse
import sys
from pathlib import Path
from xml.etree import ElementTree


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("allowed", type=Path)
    parser.add_argument("--allow", action="append", default=[], help="a further reason, for this run")
    arguments = parser.parse_args()
    lines = arguments.allowed.read_text().splitlines()
    allowed = {line.strip() for line in lines if line.strip() and not line.startswith("#")} | set(arguments.allow)
    unexpected = 0
    for case in ElementTree.parse(arguments.report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None and (reason := skipped.get("message", "")) not in allowed:
            print(f"skipped, and not allowed to be: {case.get('classname')}::{case.get('name')}: {reason}")
            unexpected += 1
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
