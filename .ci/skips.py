"""Fail on skipped tests whose reason nobody allowed: skips.py REPORT.xml ALLOWED.txt"""

import sys
from pathlib import Path
from xml.etree import ElementTree


def main(report: str, allowed_file: str) -> int:
    lines = Path(allowed_file).read_text().splitlines()
    allowed = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    unexpected = 0
    for case in ElementTree.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None and (reason := skipped.get("message", "")) not in allowed:
            print(f"skipped, and not allowed to be: {case.get('classname')}::{case.get('name')}: {reason}")
            unexpected += 1
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
