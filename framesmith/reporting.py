"""`python -m framesmith report`: run a program and report what the compiler did, or show a report that was saved."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import rich

from framesmith.running import run
from framesmith.tools.report import FORMATS, Report

EXAMPLES = """\
  python -m framesmith report -o page.html app.py ARGUMENTS   a page when app.py has ended; also -m MODULE
  python -m framesmith report run app.py                      with torch.compile meaning framesmith
  python -m framesmith report saved.json -o page.html         from a saved report; without -o on the console
"""


def main(arguments: list[str]) -> int:
    """Return the command line."""
    parser = argparse.ArgumentParser("python -m framesmith report", description=__doc__, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", help="the file to write (.html, .json, .txt); of a program by default "
                                               "framesmith-report.html")
    parser.add_argument("--format", choices=FORMATS, help="of a saved report, if the ending does not say")
    parser.add_argument("--measure", action="store_true", help="time the kernels when the program has ended")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", help="a script, a module, or a saved report (.json)")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's")
    options = parser.parse_args(arguments)
    if options.program.endswith(".json") and not options.module:
        options = parser.parse_args([*options.arguments, options.program], options)  # they may stand behind it
        return _show(Report.read(options.program), options.output, options.format)
    os.environ["FRAMESMITH_REPORT"] = os.path.abspath(options.output or "framesmith-report.html")
    os.environ["FRAMESMITH_REPORT_MEASURE"] = str(int(options.measure))
    program = ["-m"] * options.module + [options.program, *options.arguments]
    if options.program == "run" and not options.module:
        return run(options.arguments)
    sys.stdout.flush()
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    os.execv(sys.executable, [sys.executable, *flags, *program])
    return 0


def _show(report: Report, output: str | None, format: str | None) -> int:
    if output is not None:
        report.save(output, format)
    elif format is None or format == "console":
        rich.print(report)
    else:
        print(report.text(format))
    return 0
