"""What a vLLM died of, from its exit status and the end of its log."""

from llmgw.engine import Exit, FailureKind, Verdict


def classify(exit: Exit, log_tail: str) -> Verdict:
    return Verdict(kind=FailureKind.CRASH, reason=f"ended with {exit}")
