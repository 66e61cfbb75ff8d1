"""Little plugin packages, built as wheels and installed by pip into a directory of their own."""

import base64
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

GOOD: Final = '''
import sys
from llmgw.engine import *
from llmgw.ids import EngineName
from llmgw.units import MIB, Bytes

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""

class Base(Engine):
    name = EngineName("@")
    needs_weights = False

    def fingerprint(self):
        return EngineFact(name=self.name, version="1")

    def footprint(self, profile, files, level):
        return Footprint(host=Bytes(20 * MIB))

    def launch(self, profile, slot, level):
        argv = (sys.executable, "-c", SERVER, slot.host, str(slot.port))
        return LaunchSpec(argv=argv, url=f"http://{slot.host}:{slot.port}")

@hookimpl
def llmgw_engines():
    return [Base()]
'''
"""An engine named after its package, over a server that says {} to everybody."""


def good(change: str = "") -> str:
    """GOOD, with further or other methods of its engine."""
    return GOOD.replace("@hookimpl\n", f"class Base(Base):\n{change or '    pass'}\n\n@hookimpl\n", 1)


AT_IMPORT: Final = {
    "raises": 'raise RuntimeError("no luck\\ntoday")',
    "sysexit": "import sys\nsys.exit(3)",
    "osexit": "import os\nos._exit(7)",
    "hangs": "import threading\nthreading.Event().wait()",
    "segfaults": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "interrupts": "raise KeyboardInterrupt",
    "misspelt": GOOD.replace("def llmgw_engines", "def llmgw_engine"),
    "unmarked": GOOD.replace("@hookimpl\n", ""),
    "hookraises": GOOD.replace("return [Base()]", 'raise LookupError("in the hook")'),
    "hookexits": GOOD.replace("return [Base()]", "sys.exit()"),
    "hooknone": GOOD.replace("return [Base()]", "return None"),
    "hooktext": GOOD.replace("return [Base()]", 'return "engines"'),
    "aclass": GOOD.replace("return [Base()]", "return [Base]"),
    "notengine": GOOD.replace("return [Base()]", "return [object()]"),
    "abstract": GOOD.replace("def footprint", "def footprints"),
    "constructor": good('    def __init__(self):\n        raise OSError("no device")'),
    "newapi": good("    api_version = 99"),
    "oldapi": good("    api_version = 0"),
    "badname": good('    name = "Not A Name"'),
    "badschema": good('    options_schema = {"type": "objekt"}'),
    "badpattern": good('    options_schema = {"properties": {"x": {"pattern": "("}}}'),
    "farschema": good('    options_schema = {"$ref": "https://example.org/schema.json"}'),
    "badroles": good('    roles = ["weights"]'),
    "twice": GOOD.replace("return [Base()]", "return [Base(), Base()]"),
    "thread": GOOD + "\nimport threading\nthreading.Thread(target=threading.Event().wait).start()\n",
    "missing": "import a_dependency_that_is_not_installed",
    "syntax": "def llmgw_engines(:",
}
"""Broken before an engine can be used: name -> source."""

AT_RUN_TIME: Final = {
    "fphangs": good("    def fingerprint(self):\n        import threading\n        threading.Event().wait()"),
    "fpraises": good('    def fingerprint(self):\n        raise OSError("no driver")'),
    "fpnonsense": good("    def fingerprint(self):\n        return {}"),
    "footraises": good('    def footprint(self, profile, files, level):\n        raise ValueError("no idea")'),
    "footnonsense": good("    def footprint(self, profile, files, level):\n        return 5"),
    "launchraises": good('    def launch(self, profile, slot, level):\n        raise ValueError("not today")'),
    "launchnonsense": good("    def launch(self, profile, slot, level):\n        return None"),
    "classifyraises": good(
        "    def launch(self, profile, slot, level):\n"
        '        return LaunchSpec(argv=(sys.executable, "-c", "raise SystemExit(9)"), url="http://127.0.0.1:9")\n'
        '    def classify(self, exit, log_tail):\n        raise ValueError("what exit?")'
    ),
    "fppath": good(
        "    def fingerprint(self):\n        return EngineFact(name=self.name, path=__import__('pathlib').Path('/'))"
    ),
    "footfraction": good(
        "    def footprint(self, profile, files, level):\n        return Footprint(host=1.1 * MIB + 0.5)"
    ),
    "proberaises": good('    def read_probe(self, request, status, body):\n        raise ValueError("what answer?")'),
    "probetrue": good("    def read_probe(self, request, status, body):\n        return status == 200"),
}
"""They load, and misbehave when they are used."""

WORKING: Final = {
    "fine": GOOD,
    "noisy": "import os\nprint('noise on stdout')\nos.system('echo more noise')\n" + GOOD,
}


def install(sources: Iterable[tuple[str, str]], target: Path, wheels: Path) -> Path:
    """Each as the distribution `little-NAME` 1.0 with the module `little_NAME` and the entry point NAME."""
    wheels.mkdir(parents=True, exist_ok=True)
    built = [str(_wheel(wheels, name, source)) for name, source in sources]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--no-compile", "--upgrade", "--target", str(target), *built], check=True, timeout=120)
    return target


def unpack(sources: Iterable[tuple[str, str]], target: Path, wheels: Path) -> Path:
    """As `install`, without pip: for many small changes."""
    wheels.mkdir(parents=True, exist_ok=True)
    for name, source in sources:
        with zipfile.ZipFile(_wheel(wheels, name, source)) as wheel:
            wheel.extractall(target)
    return target


def _wheel(directory: Path, name: str, source: str) -> Path:
    info = f"little_{name}-1.0.dist-info"
    files = {
        f"little_{name}.py": source.replace('EngineName("@")', f'EngineName("{name}")'),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: little-{name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[llmgw]\n{name} = little_{name}\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    path = directory / f"little_{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in files.items():
            wheel.writestr(member, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def environment(target: Path, cache: Path, **more: str) -> dict[str, str]:
    """For an llmgw process that finds what is installed in `target`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LLMGW_")}
    return clean | {"PYTHONPATH": str(target), "XDG_CACHE_HOME": str(cache)} | more


def llmgw(*arguments: object, env: dict[str, str], timeout: float = 120) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "llmgw", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env=env)
