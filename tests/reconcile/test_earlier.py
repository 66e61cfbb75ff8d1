"""Which earlier catalog it is that a rollback goes to, and what cannot be gone back to."""

from dataclasses import replace
from pathlib import Path

import pytest
from make import NOW, catalog, model

from llmgw.catalog.live import save_last_good
from llmgw.catalog.source import Source
from llmgw.engine.manager import Engines
from llmgw.errors import CatalogInvalid, CatalogUnreadable
from llmgw.ids import Digest, ModelName, Revision
from llmgw.reconcile.earlier import Earlier
from llmgw.reconcile.publishing import publish
from llmgw.store.memory import MemoryStore


def no_git(revision: str) -> Source:
    raise CatalogUnreadable(f"no git has {revision}")


@pytest.mark.parametrize("asked", ["feed0123", None])
async def test_what_was_kept_is_not_gone_back_to_once_the_plugin_of_its_engine_is_gone(
    tmp_path: Path, asked: str | None
) -> None:
    last_good, store = tmp_path / "last-good" / "catalog.json", MemoryStore()
    old = replace(catalog(model("a")), revision=Revision("feed0123"), digest=Digest("old"))
    await publish(store, old, NOW)
    save_last_good(last_good, old)
    engine = old.models[ModelName("a")].profiles[0].engine
    gone = Earlier(store=store, last_good=last_good, engines=Engines(), read=no_git)
    with pytest.raises(CatalogInvalid, match=f"feed0123: model a needs the engine '{engine}'"):
        await gone.find(asked, None, None)
    lost = Earlier(store=store, last_good=last_good, engines=Engines(lost={engine: "it is broken"}), read=no_git)
    assert await lost.find(asked, None, None) == old, "whose plugin is but broken is waited for, as ever"
