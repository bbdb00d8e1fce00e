"""The reliability table of the README is the one that its JSON file gives."""

from benchmarks.readme import README
from benchmarks.reliability import keep, load, table


def test_the_readme_has_the_table_of_the_kept_runs():
    text = README.read_text().split("<!-- reliability: begin -->")[1].split("<!-- reliability: end -->")[0]
    assert text.strip() == table(load())


def test_a_run_replaces_the_row_of_its_name(tmp_path):
    results = tmp_path / "rows.json"
    keep("soak", 10, 1, "run --models 10", results=results)
    keep("soak", 20, 0, "run --models 20", left_out=3, results=results)
    rows = load(results)
    assert list(rows) == ["soak"] and rows["soak"]["cases"] == 20
    assert table(rows).splitlines()[-1].startswith("| soak | 20 | 0 | 3 | `run --models 20` |")
