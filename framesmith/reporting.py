"""`python -m framesmith report`: run a program and report what the compiler did, or show a report that was saved."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

import rich

from framesmith.api import report_at_exit
from framesmith.tools.report import FORMATS, Report


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m framesmith report", description=__doc__)
    parser.add_argument("-o", "--output", help="the file to write (.html, .json, .txt); default for a program: "
                                               "framesmith-report.html")
    parser.add_argument("--format", choices=FORMATS, help="its format, if the ending does not say")
    parser.add_argument("--measure", action="store_true", help="time the kernels when the program has ended")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", help="a script, a module, or a saved report (.json)")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's")
    options = parser.parse_args(argv)
    if options.program.endswith(".json") and not options.module:
        options = parser.parse_args([*options.arguments, options.program], options)  # they may stand behind it
        _show(Report.read(options.program), options.output, options.format)
        return
    report_at_exit(options.output or "framesmith-report.html", options.format, options.measure)
    sys.argv = [options.program, *options.arguments]
    if options.module:
        sys.path.insert(0, "")
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(options.program).resolve().parent))
        runpy.run_path(options.program, run_name="__main__")


def _show(report: Report, output: str | None, format: str | None) -> None:
    if output is not None:
        report.save(output, format)
    elif format is None or format == "console":
        rich.print(report)
    else:
        print(report.text(format))


if __name__ == "__main__":
    main()
