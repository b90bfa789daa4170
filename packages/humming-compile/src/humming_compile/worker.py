"""The compiler process: reads requests from its standard input, compiles, writes answers to its standard output.

Started by pool as `python -m humming_compile.worker --library PATH`; tests call `serve` with a compiler of their own.
Assumes that the parent owns the other ends of the pipes: when they close, this process ends at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Protocol

from humming_compile.nvrtc import Compiled, Nvrtc, NvrtcError
from humming_compile.protocol import Message, encode, read_message

_LOOK_SECONDS = 2


class Compiler(Protocol):
    """What `serve` needs of a compiler."""

    @property
    def version(self) -> tuple[int, int]: ...

    @property
    def architectures(self) -> tuple[int, ...]: ...

    def compile(
        self, unit_text: str, headers: Mapping[str, str], options: list[str], output: str, name: str
    ) -> Compiled: ...


def serve(make_compiler: Callable[[], Compiler]) -> None:
    """Answers requests until the standard input ends. Nothing but messages reaches the pipe of the standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair; it ends this process if it likes
    requests, answers = _take_standard_streams()
    threading.Thread(target=_leave_with_parent, args=(requests.fileno(), os.getppid()), daemon=True).start()
    _be_the_first_to_go()
    try:
        compiler = make_compiler()
    except NvrtcError as error:
        _send(answers, Message(head={"kind": "failed", "message": error.message}))
        return
    hello = {"kind": "hello", "version": list(compiler.version), "architectures": list(compiler.architectures)}
    _send(answers, Message(head=hello))
    while (message := read_message(requests)) is not None:
        _send(answers, _answer(compiler, message.head))


def _answer(compiler: Compiler, head: dict[str, Any]) -> Message:
    try:
        compiled = compiler.compile(head["unit_text"], head["headers"], head["options"], head["output"], head["name"])
    except NvrtcError as error:
        return Message(head={"kind": "failed", "message": error.message, "log": error.log})
    return Message(
        head={
            "kind": "compiled",
            "log": compiled.log,
            "seconds": compiled.seconds,
            "cpu_seconds": compiled.cpu_seconds,
        },
        body=compiled.data,
    )


def _send(answers: BinaryIO, message: Message) -> None:
    answers.write(encode(message))
    answers.flush()


def _take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Moves both pipes to private numbers, so that a library that prints cannot write into a message."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def _leave_with_parent(requests: int, parent: int) -> None:
    """Ends this process when the parent's end of the pipe closes or the parent ends, also in the middle of a compile.

    The pipe tells at once. It stays open where another child of the parent holds a copy of its end, so the parent is
    looked at too.
    """
    poll = select.poll()
    poll.register(requests, 0)  # only hang-up and error are told
    while not poll.poll(_LOOK_SECONDS * 1000) and os.getppid() == parent:
        pass
    os._exit(0)


def _be_the_first_to_go() -> None:
    """Where memory runs out, the system is to end this process and not the one that it works for."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
        file.write("1000")


def main(arguments: list[str]) -> None:
    """Command line of the worker."""
    if len(arguments) != 2 or arguments[0] != "--library":
        raise SystemExit("usage: python -m humming_compile.worker --library PATH_OF_NVRTC")
    serve(lambda: Nvrtc(arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
