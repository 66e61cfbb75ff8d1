"""What survived a full collection of garbage is not gone through again, and yet no garbage stays for good."""

import gc
import weakref

from llmgw.app.garbage import set_aside


class Round:
    """In a cycle with itself: only a collection finds it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_survives_is_set_aside_and_what_comes_after_is_collected() -> None:
    with set_aside():
        kept = [Round()]
        gc.collect()
        aside = gc.get_freeze_count()
        assert not any(each is kept[0] for each in gc.get_objects())
        found = weakref.ref(Round())
        assert found() is not None
        gc.collect()
        assert found() is None
        assert 0 < aside <= gc.get_freeze_count()
    assert gc.get_freeze_count() == 0
    assert any(each is kept[0] for each in gc.get_objects())


def test_garbage_among_what_was_set_aside_is_found_once_a_quarter_more_lies_there() -> None:
    with set_aside(seldom=2):
        kept = [Round()]
        gc.collect()
        gc.collect()  # of all
        lost = weakref.ref(kept.pop())
        for _ in range(4):
            gc.collect()
        assert lost() is not None, "nothing was added, so that nothing was looked at again"
        more = [[] for _ in range(gc.get_freeze_count() // 3)]  # type: ignore[var-annotated]
        gc.collect()
        gc.collect()
        assert lost() is None
        assert more
