"""Only what this host can run is mapped; loading needs no compiler and no torch."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from abi_programs import COUNT, HOST_TARGET, NOTHING, PRELUDE, compile_program, count

import aotc
from aotc.contract import Contract, Direction, Parameter, to_json
from aotc.errors import AotcError, ExitCode
from aotc.program.model import DistributedCompiledProgram, machine_code
from aotc.runtime import LoadError, host, load, load_program
from aotc.runtime.host import TARGETS as LOADED_TARGETS
from aotc.runtime.host import Host, _cgroup_quota
from aotc.runtime.library import ABI_VERSION
from aotc.store.artifact import publish, write_program
from aotc.store.layout import Layout
from aotc.toolchain.zig import TARGETS, compile_shared_object

V3 = LOADED_TARGETS["x86_64_v3"][1]
EMPTY = Contract(())


def test_every_target_of_the_compiler_is_known() -> None:
    assert set(TARGETS) <= set(LOADED_TARGETS)


@pytest.mark.parametrize("target", list(TARGETS))
def test_the_pool_compiles_for_every_target(target: str) -> None:
    content = compile_program(COUNT, target)
    for name in (b"aotc_run", b"aotc_abi_version", b"aotc_pool_dispatch", b"aotc_pool_stop"):
        assert name in content


@pytest.mark.parametrize(
    ("host", "target", "message", "hint"),
    [
        (
            Host("x86_64", V3),
            "x86_64_v4",
            "the artifact is for x86_64_v4, this host is x86_64 without "
            "avx512bw, avx512cd, avx512dq, avx512f, avx512vl",
            "build it for a target that runs here: x86_64_v3",
        ),
        (
            Host("aarch64", frozenset()),
            "x86_64_v3",
            "the artifact is for x86_64_v3, this host is aarch64",
            "build it for a target that runs here: aarch64",
        ),
        (
            Host("riscv64", frozenset()),
            "aarch64",
            "the artifact is for aarch64, this host is riscv64",
            "build it for a target that runs here: none of the known targets",
        ),
        (
            Host("x86_64", V3),
            "vax",
            "the artifact is for `vax`, which this loader does not know",
            "targets of this loader: x86_64_amx, x86_64_v4, x86_64_v3, aarch64; "
            "a newer aotc may know more",
        ),
    ],
)
def test_a_wrong_target(host: Host, target: str, message: str, hint: str) -> None:
    with pytest.raises(LoadError) as caught:
        host.check(target)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_targets_best_first() -> None:
    assert Host("x86_64", LOADED_TARGETS["x86_64_v4"][1]).targets() == ["x86_64_v4", "x86_64_v3"]
    assert Host("x86_64", V3 - {"fma"}).targets() == []


def test_tiles_that_the_kernel_does_not_grant_are_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nflags\t\t: fpu amx_tile amx_bf16\n", "utf-8")
    for granted in (True, False):
        monkeypatch.setattr(host, "_tiles_granted", lambda granted=granted: granted)
        assert ("amx_tile" in host._cpu_flags(info)) == granted


def test_a_wrong_target_is_not_mapped() -> None:
    other = "aarch64" if HOST_TARGET != "aarch64" else "x86_64_v3"
    with pytest.raises(LoadError, match=f"the artifact is for {other}, this host is"):
        load_program(EMPTY, b"not even an object", other)


@pytest.mark.parametrize(
    ("version", "hint"),
    [(ABI_VERSION - 1, "build the artifact again"), (ABI_VERSION + 1, "install a newer aotc")],
)
def test_abi_versions(version: int, hint: str) -> None:
    message = f"the artifact is for ABI version {version}, this loader is for {ABI_VERSION}"
    with pytest.raises(LoadError, match=message) as caught:
        load_program(EMPTY, b"not even an object", HOST_TARGET, version)
    assert caught.value.hint == hint
    source = PRELUDE.replace("return AOTC_ABI_VERSION", f"return {version}") + NOTHING
    content = compile_shared_object(source, TARGETS[HOST_TARGET])
    with pytest.raises(LoadError, match=message):
        load_program(EMPTY, content, HOST_TARGET)


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF"])
def test_not_an_object(content: bytes) -> None:
    with pytest.raises(LoadError, match="the object cannot be mapped: /proc/self/fd/"):
        load_program(EMPTY, content, HOST_TARGET)


def test_an_object_that_is_no_program() -> None:
    export = '__attribute__((visibility("default"))) int f(void) { return 1; }'
    content = compile_shared_object(export, TARGETS[HOST_TARGET])
    with pytest.raises(LoadError, match="the object is not an aotc program"):
        load_program(EMPTY, content, HOST_TARGET)


def test_two_objects_are_two_programs() -> None:
    contract = Contract((Parameter("counts", "int32", (16,), Direction.INOUT),))
    results = []
    for step in (1, 10, 100):
        content = compile_program(COUNT.replace("+= 1", f"+= {step}"))
        counts = numpy.zeros(16, numpy.int32)
        with load_program(contract, content, HOST_TARGET).prepare(threads=1) as worker:
            worker(counts)
        results.append(int(counts[0]))
    assert results == [1, 10, 100]


def test_the_pool_of_one_object_runs_another() -> None:
    contract = Contract((Parameter("counts", "int32", (16,), Direction.INOUT),))
    barriers = "for (int i = 0; i < 100; i++) aotc_barrier(call, thread);\n    ((int32_t"
    other = load_program(
        contract, compile_program(COUNT.replace("((int32_t", barriers)), HOST_TARGET
    )
    counts = numpy.zeros(16, numpy.int32)
    with count().prepare(threads=3) as worker:
        loaded = worker.load(other)
        for _ in range(10):
            worker(counts)
            loaded(counts)
    assert counts[:4].tolist() == [20, 20, 20, 0]


def store(
    root: Path,
    content: bytes,
    target: str = HOST_TARGET,
    abi_version: int = ABI_VERSION,
    ranks: int = 1,
) -> None:
    """Publish `content` as program `count` of model `tiny` in a store at `root`."""
    program = DistributedCompiledProgram(
        model="tiny",
        name="count",
        target=target,
        abi_version=abi_version,
        contract=to_json(count().contract),
        layers=machine_code(content, "", ""),
        identity={"aotc": "9", "toolchain": "clang"},
        device_ids=tuple(range(ranks)),
    )
    layout = Layout.create(root)
    publish(layout, "tiny", [write_program(layout, program)])


def test_load_from_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path / "artifacts", compile_program(COUNT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AOTC_STORE", raising=False)
    (tmp_path / "elsewhere").mkdir()
    for arguments in ({}, {"store": "artifacts"}, {"store": tmp_path / "artifacts"}):
        program = load("tiny", "count", **arguments)
        assert program.contract == count().contract
        counts = numpy.zeros(16, numpy.int32)
        with program.prepare(threads=2) as worker:
            worker(counts)
        assert counts.tolist() == [1, 1] + [0] * 14
    monkeypatch.setenv("AOTC_STORE", str(tmp_path / "elsewhere"))
    with pytest.raises(AotcError):
        load("tiny", "count")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"abi_version": 99},
            f"the artifact is for ABI version 99, this loader is for {ABI_VERSION}",
        ),
        ({"ranks": 2}, "it has 2 ranks, this loader runs one"),
        ({"content": b"text"}, "the object cannot be mapped: "),
    ],
)
def test_what_is_not_loaded(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    store(tmp_path, **{"content": compile_program(COUNT), **options})
    with pytest.raises(LoadError) as caught:
        load("tiny", "count", tmp_path)
    prefix = "`count` of `tiny`, built by aotc 9 with clang: "
    assert caught.value.message.startswith(prefix + message)


def test_a_store_for_another_machine(tmp_path: Path) -> None:
    other = "aarch64" if HOST_TARGET != "aarch64" else "x86_64_v3"
    store(tmp_path, compile_program(COUNT), target=other)
    with pytest.raises(AotcError, match=f"is there for {other}, wanted for .*{HOST_TARGET}"):
        load("tiny", "count", tmp_path)


def test_a_damaged_object_is_not_mapped(tmp_path: Path) -> None:
    content = compile_program(COUNT)
    store(tmp_path, content)
    (blob,) = (
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and path.stat().st_size == len(content)
    )
    blob.chmod(0o600)
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(AotcError) as caught:
        load("tiny", "count", tmp_path)
    assert caught.value.exit_code is ExitCode.INTEGRITY


def test_loading_imports_no_compiler_and_no_torch(tmp_path: Path) -> None:
    store(tmp_path / "artifacts", compile_program(COUNT))
    before = sorted(tmp_path.rglob("*"))
    code = (
        "import array, sys\n"
        "from aotc.runtime import load\n"
        "counts = array.array('i', [0] * 16)\n"
        "with load('tiny', 'count').prepare(threads=2) as worker:\n"
        "    worker(counts)\n"
        "assert list(counts) == [1, 1] + [0] * 14\n"
        "print(*sorted(sys.modules))\n"
    )
    package = Path(aotc.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(package)}
    environment.pop("AOTC_STORE", None)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    modules = done.stdout.split()
    heavy = {"torch", "numpy", "yaml", "ziglang", "click", "rich"}
    layers = ("config", "ir", "ops", "frontend", "passes", "codegen", "toolchain", "driver", "cli")
    assert "aotc.runtime.worker" in modules
    assert not heavy & set(modules)
    assert not [
        name for name in modules if name.startswith(tuple(f"aotc.{each}" for each in layers))
    ]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("files", "own", "quota"),
    [
        ({}, "0::/a/b\n", None),
        ({"a/b/cpu.max": "max 100000"}, "0::/a/b\n", None),
        ({"a/b/cpu.max": "150000 100000"}, "0::/a/b\n", 1.5),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, "0::/a/b\n", 2.0),
        ({"a/b/cpu.max": "150000 100000", "a/cpu.max": "100000 100000"}, "0::/a/b\n", 1.0),
        ({"cpu.max": "300000 100000"}, "0::/\n", 3.0),
        (
            {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"},
            "5:cpuset:/x\n4:cpu,cpuacct:/a\n",
            0.5,
        ),
        (
            {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"},
            "4:cpu:/a\n",
            None,
        ),
    ],
)
def test_cgroup_quota(tmp_path: Path, files: dict[str, str], own: str, quota: float | None) -> None:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    assert _cgroup_quota(tmp_path / "cgroup", tmp_path / "own") == quota
