"""The canonical form, on what PyPTO e2d0f78 wrote of examples/npu (tests/data/pypto).

Recorded from the signature and from samples, in two folders; debug/ is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from aotc.contract import Direction, Parameter
from aotc.errors import AotcError, Place
from aotc.toolchain import zig
from aotc.toolchain.pypto import external
from aotc.toolchain.pypto.canonical import (
    canonical_mlir,
    program_files,
    readable,
    without_debug_sections,
)
from aotc.toolchain.pypto.place import neutral
from aotc.toolchain.pypto.worker import _check_parameter

DATA = Path(__file__).parents[1] / "data" / "pypto"
MLIR = "next_levels/affine/kernels/aiv/affine_incore_0.pto"


def recorded(name: str) -> dict[str, bytes]:
    root = DATA / name
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def renumbered(files: dict[str, bytes]) -> dict[str, bytes]:
    """As PyPTO numbers inlined values in another process: all numbers differ, none are joined."""

    def other(found: re.Match[bytes]) -> bytes:
        return b"_inline%d" % (371 - 7 * int(found[1]))

    return {path: re.sub(rb"_inline(\d+)", other, text) for path, text in files.items()}


def test_signature_and_samples_have_one_form() -> None:
    signature, samples = recorded("affine-signature"), renumbered(recorded("affine-samples"))
    assert signature[MLIR] != samples[MLIR]
    assert b"/home/one/" in signature[MLIR]
    assert b"/home/two/" in samples[MLIR]
    made = program_files(signature)
    assert made == program_files(samples)
    assert b"/home/" not in b"".join(made.values())
    assert readable(made) == readable(program_files(samples))


def test_two_values_stay_two() -> None:
    """Joining two inlined values would be another program of equal form."""
    signature = recorded("affine-signature")
    joined = {path: text.replace(b"_inline3", b"_inline4") for path, text in signature.items()}
    assert program_files(joined) != program_files(signature)


def test_another_constant_is_another_form() -> None:
    signature = recorded("affine-signature")
    text = signature[MLIR].replace(b"5.0000", b"5.0001")
    assert text != signature[MLIR]
    assert program_files({**signature, MLIR: text}) != program_files(signature)


def test_reports_are_no_part_of_it() -> None:
    files = recorded("ranks-signature")
    assert "report/perf_hints.log" in files
    beside = ("debug/run.py", "next_levels/a/cache/.binary_context.lock", "dfx_outputs/x")
    more = {**files, **dict.fromkeys(beside, b"")}
    made = program_files(more)
    assert [*made] == sorted(files.keys() - {"report/perf_hints.log"})
    assert made == program_files(files)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%a = f(%b) : i32", "%v0 = f(%v1) : i32"),
        ('%a = f() {s = "%a loc(x)"}', '%v0 = f() {s = "%a loc(x)"}'),
        ('f(%a) loc("/home/a b/(k).py":3:7)\n', "f(%v0)\n"),
        ("f(%a) loc(unknown)\n", "f(%v0)\n"),
        ('#loc1 = loc("/k.py":1:2)\nf(%7) loc(#loc1)\n', "f(%v0)\n"),
        ("!pto.tile_buf<loc=vec>", "!pto.tile_buf<loc=vec>"),
        ("", ""),
    ],
)
def test_places_and_names_of_mlir(text: str, expected: str) -> None:
    assert canonical_mlir(text) == expected


SOURCE = "int twice(int x) { return 2 * x; }\nint (*pointer)(int) = twice;\n"


def shared_object(folder: Path, name: str, *options: str) -> bytes:
    """Compile in `folder`, whose path the debug sections have, with a build ID."""
    folder.mkdir(parents=True)
    (folder / "twice.c").write_text(SOURCE, encoding="utf-8")
    words = [
        *zig_clang(),
        "-shared",
        "-fPIC",
        "-nostdlib",
        "-fno-sanitize=all",
        "-Wl,--build-id=sha1",
        *options,
    ]
    words += ["twice.c", "-o", name]
    cache = {"ZIG_LOCAL_CACHE_DIR": str(folder), "ZIG_GLOBAL_CACHE_DIR": str(folder.parent / "c")}
    subprocess.run(words, cwd=folder, check=True, env={**os.environ, **cache}, timeout=120)
    return (folder / name).read_bytes()


def zig_clang() -> list[str]:
    return [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu"]


def test_machine_code_says_not_where_it_was_made(tmp_path: Path) -> None:
    assert zig.identity()
    one = shared_object(tmp_path / "one", "a.so", "-g")
    two = shared_object(tmp_path / "two" / "deeper", "a.so", "-g")
    assert one != two
    made = without_debug_sections(one)
    assert made == without_debug_sections(two)
    assert os.fsencode(tmp_path) not in made
    assert len(made) < len(one)
    assert without_debug_sections(made) == made
    (tmp_path / "a.so").write_bytes(made)
    script = f"import ctypes; print(ctypes.CDLL({str(tmp_path / 'a.so')!r}).twice(21))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if os.uname().machine == "x86_64":
        assert done.stdout == "42\n", done.stderr


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    for content in (b"", b"\x7fELF", b"text", b"\x7fELF\x02\x01" + bytes(64)):
        assert without_debug_sections(content) == content
    plain = shared_object(tmp_path / "plain", "a.so", "-g0", "-s")
    assert without_debug_sections(plain) == plain


def test_the_place_of_compilation_gets_neutral() -> None:
    folder = Path("/tmp/aotc-pypto-0123")
    content = b"\0/tmp/aotc-pypto-0123/program/x.cpp\0"
    assert neutral(content, folder) == b"\0aotc/aotc-pypto-0123/program/x.cpp\0"
    assert len(neutral(content, folder)) == len(content)


KERNELS = """\
KERNELS = [
\t{"func_id": 0, "name": "scale", "source": str(_ROOT_DIR / "k.cpp"), "core_type": "aiv"},
\t{"func_id": 1, "name": "both_aic", "source": SOURCE, "core_type": "aic", "external": True, \
"extra_include_dirs": ['/a', '/b'], "signature": [_D.IN]},
]
"""


def test_a_kernel_in_cpp_becomes_one_of_the_folder(tmp_path: Path) -> None:
    entry = tmp_path / "it's" / "entry.cpp"
    entry.parent.mkdir()
    entry.write_text("// kernel", encoding="utf-8")
    chip = tmp_path / "out" / "next_levels" / "chip"
    (chip / "cache").mkdir(parents=True)
    config = chip / "kernel_config.py"
    config.write_text(KERNELS.replace("SOURCE", repr(str(entry))), encoding="utf-8")
    (chip / "cache" / "incore_1_aic_entry_0123456789.bin").write_bytes(b"code")
    external.take_in(tmp_path / "out", "a2a3")
    text = config.read_text(encoding="utf-8")
    assert '"source": str(_ROOT_DIR / "kernels" / "aic" / "both_aic.cpp"), "core_type"' in text
    assert '"core_type": "aic", "signature": [_D.IN]}' in text
    assert str(tmp_path) not in text
    assert KERNELS.splitlines()[1] in text
    assert (chip / "kernels" / "aic" / "both_aic.cpp").read_text() == "// kernel"
    assert (chip / "cache" / "incore_1_aic_both_aic_a2a3.bin").read_bytes() == b"code"


META = msgspec.json.decode((DATA / "ranks-signature" / "distributed_meta.json").read_bytes())
PLACE = Place(Path("wrappers.py"), 9, 1)


def parameter(*dims: int | str, dtype: str = "fp32") -> Parameter:
    return Parameter("x", dtype, dims, Direction.IN)


def test_a_declared_parameter_is_that_of_the_program() -> None:
    _check_parameter(parameter(2, "ROWS_DYN", 64), META["params"][0], PLACE)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (parameter(2, "ROWS_DYN", 32), "dimension 2 of `x` is 64 in the program, 32 is declared"),
        (parameter("B", "ROWS_DYN", 64), "dimension 0 of `x`, `B`, became the constant 2"),
        (parameter(2, 16, 64), "dimension 1 of `x` is -1 in the program, 16 is declared"),
        (parameter(2, "ROWS_DYN"), "`x` has 3 dimensions in the program"),
        (parameter(2, "ROWS_DYN", 64, dtype="bf16"), "`x` is fp32 in the program, bf16 is"),
    ],
)
def test_what_the_program_takes_differs(declared: Parameter, message: str) -> None:
    with pytest.raises(AotcError) as caught:
        _check_parameter(declared, META["params"][0], PLACE)
    assert message in caught.value.message
    assert caught.value.place == PLACE
