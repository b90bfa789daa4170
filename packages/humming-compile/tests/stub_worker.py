"""A worker with a stub compiler, for tests: `python stub_worker.py COUNT_FILE [VERSION]`.

Started by pools in tests in place of `python -m humming_compile.worker`.
Assumes that the unit's first line tells what to do: "// sleep 0.3", "// hang", "// exit 3", "// kill",
"// memory", "// print", "// fail TEXT".
"""

import hashlib
import os
import resource
import signal
import sys
import time

from humming_compile.nvrtc import Compiled, NvrtcError
from humming_compile.worker import serve


class StubCompiler:
    """Answers with a digest of what it was asked, after doing what the unit says."""

    architectures = (75, 90)

    def __init__(self, count_file: str, version: str) -> None:
        self._count_file = count_file
        major, minor = version.split(".")
        self.version = (int(major), int(minor))

    def compile(self, unit_text, headers, options, output, name):
        with open(self._count_file, "a") as file:
            file.write(f"{name} {os.getpid()}\n")
        words = unit_text.partition("\n")[0].removeprefix("//").split() or [""]
        if words[0] == "sleep":
            time.sleep(float(words[1]))
        elif words[0] == "hang":
            time.sleep(1000)
        elif words[0] == "exit":
            sys.stderr.write("the compiler is unwell\n")
            sys.stderr.flush()
            os._exit(int(words[1]))
        elif words[0] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif words[0] == "memory":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            bytearray(2 << 30)
        elif words[0] == "print":
            print("text on the standard output")
            os.write(1, b"more of it\n")
        elif words[0] == "fail":
            raise NvrtcError(f"the stub does not compile {name!r}", log=" ".join(words[1:]))
        text = repr((unit_text, sorted(headers.items()), options, output))
        data = hashlib.sha256(text.encode()).digest() * 3000
        return Compiled(data=data, log="a note", seconds=0.5, cpu_seconds=0.25)


if __name__ == "__main__":
    serve(lambda: StubCompiler(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "13.0"))
