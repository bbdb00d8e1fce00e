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


def run(folder, *sizes, text=PROGRAM, **environment):
    folder.mkdir(exist_ok=True)
    file = folder / "program.py"
    file.write_text(text)
    env = os.environ | {"FRAMESMITH_CACHE_DIR": str(folder / "cache"), "FRAMESMITH_KEEP_SIZES": "1",
                        "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment
    done = subprocess.run([sys.executable, str(file), *map(str, sizes)], env=env, capture_output=True, text=True,
                          check=True)
    return int(done.stdout)


def test_a_second_process_begins_with_symbols(tmp_path):
    assert run(tmp_path, 3, 5, 7) == 2
    assert run(tmp_path, 4, 6, 9) == 1
    assert run(tmp_path, 4, 6, FRAMESMITH_KEEP_SIZES="0") == 2
    (tmp_path / "cache" / "sizes.json").write_text('{"damaged": 1')
    assert run(tmp_path, 4, 6) == 2


def test_ints_of_the_caller_are_kept(tmp_path):
    assert run(tmp_path, 3, 5, 7, 9, text=NUMBERS) == 2
    assert run(tmp_path, 4, 6, 9, text=NUMBERS) == 1
    assert run(tmp_path, 4, 6, 9, text=NUMBERS, FRAMESMITH_KEEP_SIZES="0") == 2
