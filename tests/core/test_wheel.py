"""What is in the wheel that people install: the package, the engine plugins that come with it, and the schemas."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_ships_the_package_every_plugin_with_its_entry_point_and_the_schemas(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (declared,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        entry_points = archive.read(declared).decode().splitlines()

    shipped = {name for name in names if name.endswith(".py")}
    plugins = sorted(file.parent for file in ROOT.glob("plugins/*/__init__.py"))
    assert plugins
    for package in (ROOT / "llmgw", *plugins):
        assert {str(file.relative_to(package.parent)) for file in package.rglob("*.py")} <= shipped
    for plugin in plugins:
        assert f"{plugin.name.removeprefix('llmgw_')} = {plugin.name}" in entry_points
    assert "llmgw = llmgw.cli.main:main" in entry_points
    schemas = {f"llmgw/{file.relative_to(ROOT)}" for file in (ROOT / "schemas").rglob("*.json")}
    assert schemas
    assert schemas <= names
    assert {"llmgw/py.typed"} <= names
    packages = {"llmgw", *(plugin.name for plugin in plugins)}
    assert {name.split("/")[0] for name in names} - packages == {declared.split("/")[0]}, "nothing else"
    assert set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]) >= {
        "cpu", "test", "dev",
    }  # fmt: skip
