"""What was seen to vary is known to the next process."""

import os
import subprocess
import sys

PROGRAM = """
import sys
import torch
import framesmith
from framesmith import compiler

captures, real = [], compiler.convert_frame
compiler.convert_frame = lambda *args, **kwargs: captures.append(1) or real(*args, **kwargs)

@framesmith.compile
def program(x):
    return (x * 2).sum(0)

for n in map(int, sys.argv[1:]):
    assert torch.equal(program(torch.ones(n, 3)), torch.full((3,), 2.0 * n))
print(len(captures))
"""


NUMBERS = PROGRAM.replace("def program(x):\n    return (x * 2).sum(0)",
                          "def program(x, n):\n    return x[:n].sum(0) * 2").replace(
    "program(torch.ones(n, 3))", "program(torch.ones(16, 3), n)")


def run(folder, *sizes, text=PROGRAM, interpreter=None, **environment):
    """Return how much a process captures, which `interpreter` forks; None: one that begins anew."""
    file = folder / "program.py"
    file.write_text(text)
    env = os.environ | {"FRAMESMITH_CACHE_DIR": str(folder / "cache"), "FRAMESMITH_KEEP_SIZES": "1",
                        "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment
    text = f"import runpy, sys\nsys.argv[1:] = {[*map(str, sizes)]}\nrunpy.run_path({str(file)!r}, run_name='__main__')"
    if interpreter:
        done = interpreter.run(text, env)
    else:
        done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr
    return int(done.stdout)


def test_a_second_process_begins_with_symbols(tmp_path, interpreter):
    assert run(tmp_path, 3, 5, 7) == 2
    assert run(tmp_path, 4, 6, 9, interpreter=interpreter) == 1
    assert run(tmp_path, 4, 6, interpreter=interpreter, FRAMESMITH_KEEP_SIZES="0") == 2
    (tmp_path / "cache" / "sizes.json").write_text('{"damaged": 1')
    assert run(tmp_path, 4, 6, interpreter=interpreter) == 2


def test_ints_of_the_caller_are_kept(tmp_path, interpreter):
    assert run(tmp_path, 3, 5, 7, 9, text=NUMBERS) == 2
    assert run(tmp_path, 4, 6, 9, text=NUMBERS, interpreter=interpreter) == 1
    assert run(tmp_path, 4, 6, 9, text=NUMBERS, interpreter=interpreter, FRAMESMITH_KEEP_SIZES="0") == 2
