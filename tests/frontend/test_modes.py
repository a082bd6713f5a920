"""The signature and sample arguments give one program and one contract."""

from __future__ import annotations

from typing import Any

import pytest

from aotc.contract import Argument, Parameter

KERNELS = """
    import pypto.language as pl

    @pl.jit.inline
    def inner(x: pl.Tensor[[B, H], pl.FP32], out: pl.Out[pl.Tensor]):
        with pl.at(level=pl.Level.CORE_GROUP):
            out[:] = x * 2.0
        return out

    @pl.jit
    def middle(x: pl.Tensor, out: pl.Out[pl.Tensor[[B, H], pl.FP32]]):
        return inner(x, out)
    """


def wrapper(parameters: str) -> str:
    return (
        "import pypto.language as pl\n"
        "from kernels import middle\n"
        "@pl.jit.host\n"
        f"def host({parameters}):\n"
        "    return middle(x, out=out)\n"
    )


SAMPLE = (Argument("fp32", (3, 8)), Argument("fp32", (3, 8)))
ANNOTATED = "x: pl.Tensor[[B, H], pl.FP32], out: pl.Out[pl.Tensor[[B, H], pl.FP32]]"


def test_samples_give_what_the_annotations_give(model: Any) -> None:
    signature = model.write(kernels=KERNELS, wrappers=wrapper(ANNOTATED)).lower()
    assert signature.contract.parameters[0] == Parameter("x", "fp32", ("B", 8))
    for parameters in (
        ANNOTATED,
        "x: pl.Tensor, out: pl.Out[pl.Tensor]",
        "x, out: pl.Out[pl.Tensor]",
    ):
        for extent in (1, 3):
            sample = [Argument("fp32", (extent, 8))] * 2
            model.write(wrappers=wrapper(parameters))
            lowered = model.lower(arguments=sample)
            assert lowered.program == signature.program, parameters
            assert lowered.contract == signature.contract
            assert lowered.warnings == ()


def test_bind_dynamic_marks_a_sample_dynamic(model: Any) -> None:
    model.write(
        wrappers="""
            import pypto.language as pl

            @pl.jit.incore
            def kernel(x: pl.Tensor, out: pl.Out[pl.Tensor]):
                x.bind_dynamic(0, B)
                out.bind_dynamic(0, B)
                out[:] = x
                return out

            @pl.jit.host
            def host(x: pl.Tensor, out: pl.Out[pl.Tensor]):
                return kernel(x, out)
            """
    )
    lowered = model.lower(arguments=SAMPLE)
    assert [each.dims for each in lowered.contract.parameters] == [("B", 8), ("B", 8)]


def test_what_no_kernel_leaves_dynamic_stays_static(model: Any) -> None:
    model.write(
        kernels=KERNELS.replace("[[B, H], pl.FP32]", ""),
        wrappers=wrapper("x, out: pl.Out[pl.Tensor]"),
    )
    lowered = model.lower(arguments=SAMPLE)
    assert [each.dims for each in lowered.contract.parameters] == [(3, 8), (3, 8)]


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((3, 7), "wrapper `host`, parameter `x`, dimension 1: expected 8, got 7 in the sample"),
        ((3,), "wrapper `host`, parameter `x`: expected 2 dimensions, got 1 in the sample"),
    ],
)
def test_a_sample_must_fit(model: Any, sample: tuple[int, ...], message: str) -> None:
    model.write(kernels=KERNELS, wrappers=wrapper(ANNOTATED))
    error = model.error(arguments=[Argument("fp32", sample), SAMPLE[1]])
    assert error.message == message
    assert model.where(error) == "wrappers:4:13"


def test_a_sample_of_another_dtype_and_count(model: Any) -> None:
    model.write(kernels=KERNELS, wrappers=wrapper(ANNOTATED))
    error = model.error(arguments=[Argument("bf16", (3, 8)), SAMPLE[1]])
    assert error.message == (
        "wrapper `host`, parameter `x`: expected dtype fp32, got bf16 in the sample"
    )
    assert model.error(arguments=[SAMPLE[0]]).message == ("wrapper `host` takes 2 arguments, got 1")


def test_a_pinned_dimension_is_warned_of(model: Any) -> None:
    static = ANNOTATED.replace("[[B, H]", "[[3, H]")
    lowered = model.write(kernels=KERNELS, wrappers=wrapper(static)).lower()
    assert lowered.warnings == (
        "wrapper `host` pins `out` dimension 0 to 3, and its kernel `middle` leaves it dynamic "
        "(`B`)",
    )
    assert lowered.contract.parameters[0].dims == (3, 8)


def test_a_scalar_default_specializes_and_runtime_does_not(model: Any) -> None:
    text = """
        import pypto.language as pl

        @pl.jit.incore
        def kernel(n: pl.Scalar[pl.INT32], out: pl.Out[pl.Tensor[[B, H], pl.INT32]]):
            out[:] = pl.full([B, H], dtype=pl.INT32, value=0) + n
            return out

        @pl.jit.host
        def host(out: pl.Out[pl.Tensor[[B, H], pl.INT32]], n: pl.Scalar[pl.INT32] = DEFAULT):
            return kernel(n, out)
        """
    runtime = model.write(wrappers=text.replace("DEFAULT", "pl.RUNTIME")).lower()
    assert [each.name for each in runtime.contract.parameters] == ["out", "n"]
    fixed = model.write(wrappers=text.replace("DEFAULT", "7")).lower()
    assert [each.name for each in fixed.contract.parameters] == ["out"]
    assert "int32(7)" in repr_program(fixed)
    assert "int32(7)" not in repr_program(runtime)


def repr_program(lowered: Any) -> str:
    from aotc.ir.text import print_program

    return print_program(lowered.program)


def test_a_comment_changes_nothing(model: Any) -> None:
    first = model.write(kernels=KERNELS, wrappers=wrapper(ANNOTATED)).lower()
    changed = KERNELS.replace("out[:] = x * 2.0", "# twice\n            out[:] = x  *  2.0")
    second = model.write(kernels=changed).lower()
    assert repr_program(first) == repr_program(second)
    texts = [each.location.text for each in first.program.body.statements]
    assert texts == [each.location.text for each in second.program.body.statements]
