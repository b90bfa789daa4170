"""Processes that are killed at random moments: nothing is corrupted, hangs or is left behind.

Run by pytest; the long version is marked slow and runs when that mark is asked for (-m slow).
Assumes Linux: /proc tells which processes run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

# Each round forks processes that compile the same new keys side by side, and kills each of them, or one of its workers,
# after a random time. Then this process asks for the keys, which must be there or be compiled in good time.
SCRIPT = """
import glob, hashlib, json, logging, random, signal
ROUNDS, SEED = NUMBERS
random.seed(SEED)
said = []
class Keep(logging.Handler):
    def emit(self, record): said.append(record.getMessage())
logging.getLogger('humming_compile').addHandler(Keep())
real_fsync = os.fsync
def slow_fsync(descriptor):
    time.sleep(random.random() * 0.01)
    real_fsync(descriptor)
os.fsync = slow_fsync

def requests(round):
    return [unit(f'// sleep 0.00{number}\\n// {round} {number}\\n') for number in range(3)]

def state(process):
    return open(f'/proc/{process}/stat').read().rsplit(')', 1)[1].split()[:2]  # state, parent

def workers(parent=None):
    found = []
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            words = open(path).read().split('\\0')
            if COUNT in words and words[1].endswith('stub_worker.py'):
                process = int(path.split('/')[2])
                letter, its_parent = state(process)
                if letter not in 'ZX' and parent in (None, int(its_parent)):
                    found.append(process)
        except OSError:
            pass
    return found

killed = 0
data, slowest = {}, 0.0
for round in range(ROUNDS):
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            random.seed(os.getpid())
            try:
                make(workers=1).compile_many(requests(round))
            except HummingCompileError:
                os._exit(1)  # its worker was killed
            os._exit(0)
        children.append(child)
    time.sleep(random.random() * 0.3)
    for child in children:
        targets = workers(child) if random.random() < 0.3 else []
        try:
            os.kill(random.choice(targets) if targets else child, signal.SIGKILL)
            killed += 1
        except ProcessLookupError:
            pass
        time.sleep(random.random() * 0.02)
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert all(code in (0, 9, 256) for code in codes), codes
    fresh = make(workers=1)
    started = time.monotonic()
    for request in requests(round):
        artifact = fresh.compile(request)
        assert artifact.data == artifact.data[:32] * 3000
        assert data.setdefault(artifact.key, artifact.data) == artifact.data
    fresh.compile(unit(f'// publishes, and so looks for leftovers {round}'))
    slowest = max(slowest, time.monotonic() - started)
    fresh.close()
    left = [name for name in os.listdir(fresh.store.folder) if name.endswith('.tmp')]
    assert left == [], left
service.close()
deadline = time.monotonic() + 10
while workers() and time.monotonic() < deadline: time.sleep(0.05)
second = make()
for key, expected in data.items():
    entry = second.store.read(key, 'sm_90a', 'cubin')
    assert entry is not None and entry.data == expected
print(json.dumps({'killed': killed, 'said': said, 'orphans': workers(), 'slowest': slowest, 'keys': len(data)}))
"""


def rounds(stub, run_script, count: int, seconds: float) -> None:
    script = SCRIPT.replace("NUMBERS", f"{count}, 7").replace("COUNT", repr(str(stub.count_file)))
    done = run_script(stub.script(script), seconds=seconds)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["orphans"] == [] and told["said"] == [], "no process is left, and no entry was found bad"
    assert told["keys"] == 3 * count and told["killed"] >= count, "nearly two of two are killed before they end"
    assert told["slowest"] < 20, "nothing waits for the dead"
    assert {path.suffix for path in Path(stub.cache).iterdir()} <= {".entry", ".lock"}


def test_kills_at_random_moments(stub, run_script) -> None:
    rounds(stub, run_script, 4, seconds=60)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_hundred_kills_at_random_moments(stub, run_script, request: pytest.FixtureRequest) -> None:
    if "slow" not in request.config.option.markexpr:
        pytest.skip("takes minutes; run with -m slow")
    rounds(stub, run_script, 500, seconds=1700)
