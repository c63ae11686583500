"""A process that compiles grammars and can be killed if a compilation takes too long.

``GrammarPool`` starts it. It reads JSON lines from standard input: first ``[seconds, vocabulary]``,
then ``[kind, text]`` for each grammar. It answers each line with one JSON line: null, or the reason
why the grammar cannot be used.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import sys
from typing import Any

END_MARGIN_SECONDS = 5  # after the limit, before the process ends without the server; not tuned
# The prefix of xgrammar's error messages: time, place in its source, and sometimes its condition.
SOURCE_LINE = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Check failed: \(.*\) is false: )?")


def compiler_of(vocabulary: str) -> Any:
    """xgrammar's compiler for a serialized ``TokenizerInfo``, which uses half of the cores."""
    import xgrammar

    info = xgrammar.TokenizerInfo.deserialize_json(vocabulary)
    threads = max(1, (os.cpu_count() or 1) // 2)
    return xgrammar.GrammarCompiler(info, max_threads=threads, cache_enabled=False)


def compiled(compiler: Any, kind: str, text: str) -> Any:
    """A compiled JSON schema, structural tag, grammar in GBNF, or any JSON ("json")."""
    if kind == "json":
        return compiler.compile_builtin_json_grammar()
    if kind == "json_schema":
        return compiler.compile_json_schema(text)
    if kind == "grammar":
        return compiler.compile_grammar(text)
    return compiler.compile_structural_tag(text)


def fault_of(compiler: Any, kind: str, text: str) -> str | None:
    """Why a grammar cannot be used, or None."""
    import xgrammar

    try:
        grammar = compiled(compiler, kind, text)
        allowed = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
        xgrammar.GrammarMatcher(grammar).fill_next_token_bitmask(allowed)
    except Exception as error:  # xgrammar raises errors of several types
        reason = str(error).strip().partition("\n")[0]
        return SOURCE_LINE.sub("", reason)[:500] or type(error).__name__
    return None if allowed.any() else "no text matches it"


def main() -> None:
    """Compile until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # output that a library prints must not be taken for an answer
        seconds, vocabulary = json.loads(sys.stdin.readline())
        compiler = compiler_of(vocabulary)
        print("null", file=answers, flush=True)
        for line in sys.stdin:
            kind, text = json.loads(line)
            _end_after(math.ceil(seconds) + END_MARGIN_SECONDS)
            fault = fault_of(compiler, kind, text)
            _end_after(0)
            print(json.dumps(fault), file=answers, flush=True)


def _end_after(seconds: int) -> None:
    """Have the system end this process after a delay, in case the server was killed; 0: never."""
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)


if __name__ == "__main__":
    main()
