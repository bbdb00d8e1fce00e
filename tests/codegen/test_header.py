"""The kernel header of a translation unit: what the unit needs, and the code that the whole header gives."""

import subprocess

import pytest

from framesmith.codegen.cpp import header
from framesmith.codegen.cpp.header import END, header_for, header_text
from framesmith.runtime.toolchain import COMPILE_FLAGS, find

ROW = """
extern "C" void k0(const float* p, float* q) {
  for (i64 i = 0; i < 64; i += W) store(q + i, BODY, full);
}
"""
BODIES = ["load(p + i, full) + 1.0f", "erf(load(p + i, full))", "atan2(load(p + i, full), load(q + i, full))",
          "splat(fold_sum(load(p + i, full)))", "max(load_strided(p + i, 3, full), splat(0.5f))",
          "to_bf16(where(isnan(load(p, full)), vf{}, floor(load(p + i, 7))))"]


def test_a_unit_gets_what_it_uses_and_what_that_uses():
    text = header_for("extern \"C\" void k0(vf* p) { *p = sigmoid(*p); }  // tanh\n")
    assert text.endswith(END) and header_text().endswith(END) and len(text) < len(header_text()) / 3
    for used in ("FN vf sigmoid(", "FN double sigmoid(", "FS_SCALAR(sigmoid)", "FN vf exp(", "FS_LIB1(exp, ",
                 "#define FS_LIB1(", "FN vf pow2_times(", "FN V splat(", "FN vd operator-(", "FS_PAIR_OP(vl, <<)"):
        assert used in text, used
    for other in ("tanh", "contract_tile", "Sleef_exp2", "erfinv"):
        assert other not in text, other


def test_all_overloads_of_a_name_come_in_order():
    first, declarations, defining = header._table()
    whole = [d.text for d in declarations if "load" in d.names]
    text = header_for("load")
    assert len(whole) > 15 and [text.index(t) for t in whole] == sorted(text.index(t) for t in whole)
    assert header_for(" ".join(defining)) == first + "".join(d.text for d in declarations) + END


def compiled(texts, folder, *flags):
    folder.mkdir()
    for i, text in enumerate(texts):
        (folder / f"{i}.cpp").write_text(text)
    options = [flag for flag in COMPILE_FLAGS if flag not in ("-march=native", "-pipe")]
    subprocess.run([find().compiler, *options, *flags, "-c", *[f"{i}.cpp" for i in range(len(texts))]], cwd=folder,
                   check=True)
    return [path.read_bytes() for path in sorted(folder.glob("*.o"))]


@pytest.mark.parametrize("flags", [("-march=native",), ("-march=x86-64-v3", "-DFS_NO_SLEEF")], ids=["native", "v3"])
def test_the_code_is_that_of_the_whole_header(flags, tmp_path):
    units = [ROW.replace("BODY", body) for body in BODIES]
    own = compiled([header_for(unit) + unit for unit in units], tmp_path / "own", *flags)
    assert own == compiled([header_text() + unit for unit in units], tmp_path / "whole", *flags)
    assert len({*own}) == len(units)


def test_each_name_brings_what_it_needs(tmp_path):
    """One unit with the headers of all names, each in a namespace of its own."""
    _, _, defining = header._table()
    texts = [header_for(name).removesuffix("using namespace fs;\n").replace("namespace fs {", f"namespace fs{i} {{")
             for i, name in enumerate(sorted({*defining}))]
    compiled(["".join(texts)], tmp_path / "all", "-march=native", "-fsyntax-only")
