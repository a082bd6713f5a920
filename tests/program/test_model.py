"""A program's record keeps everything, and anything else in its place is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aotc.errors import ExitCode
from aotc.program.model import (
    FILE_TYPE,
    IR_TYPE,
    OBJECT_TYPE,
    SCHEMA_VERSION,
    DistributedCompiledProgram,
    Layer,
    Record,
    UnsupportedSchemaError,
    machine_code,
)


def program(**changes: Any) -> DistributedCompiledProgram:
    fields: dict[str, Any] = {
        "model": "tiny",
        "name": "decode",
        "target": "x86_64_v3",
        "abi_version": 1,
        "contract": b'{"parameters":[],"symbols":[]}',
        "layers": machine_code(b"code", "ir", "c"),
        "identity": {"toolchain": "clang 1", "aotc": "0.1.0"},
    }
    return DistributedCompiledProgram(**{**fields, **changes})


def test_the_text_of_a_record() -> None:
    assert program(device_ids=(0, 3)).record().encode() == (
        b'{"abi_version":1,"contract":{"parameters":[],"symbols":[]},"device_ids":[0,3],'
        b'"identity":{"aotc":"0.1.0","toolchain":"clang 1"},"model":"tiny","program":"decode",'
        b'"schema":1,"target":"x86_64_v3"}'
    )


def test_round_trip() -> None:
    given_program = program(device_ids=(2, 1))
    record = Record.decode(given_program.record().encode())
    assert record.encode() == given_program.record().encode()
    assert bytes(record.contract) == given_program.contract
    assert record.device_ids == (2, 1)
    assert record.ranks == 2
    assert record.built_by == "aotc 0.1.0 with clang 1"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    ),
    st.dictionaries(st.text(), st.text()),
    st.text(),
)
def test_any_contract_is_kept_byte_for_byte(
    value: Any, identity: dict[str, str], name: str
) -> None:
    contract = json.dumps({"value": value}, indent=1).encode()
    record = Record.decode(
        program(contract=contract, identity=identity, name=name).record().encode()
    )
    assert bytes(record.contract) == contract
    assert record.identity == identity
    assert record.program == name


@pytest.mark.parametrize(
    "contract",
    [b"", b"[]", b"1", b" {}", b"{} ", b"{}{}", b'{},"model":{}', b"{", b"{\xff}", b'{"a":}'],
)
def test_what_is_not_one_json_object_is_no_contract(contract: bytes) -> None:
    with pytest.raises(ValueError, match=r"contract|record"):
        program(contract=contract)


def test_a_program_has_a_rank() -> None:
    with pytest.raises(ValueError, match="at least one rank"):
        program(device_ids=())


@pytest.mark.parametrize("schema", [0, 2, 99])
def test_another_schema_is_refused_with_both_versions(schema: int) -> None:
    document = json.loads(program().record().encode())
    document.update(schema=schema, field_of_the_future=[1])
    with pytest.raises(UnsupportedSchemaError) as caught:
        Record.decode(json.dumps(document).encode())
    assert caught.value.message == (
        f"the record of `decode` has schema {schema}, built by aotc 0.1.0 with clang 1; "
        f"this aotc reads schema {SCHEMA_VERSION}"
    )
    assert caught.value.exit_code == ExitCode.ENVIRONMENT


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"",
        lambda text: b"[]",
        lambda text: b"\xff",
        lambda text: b"[" * 100_000,
        lambda text: text[:-1],
        lambda text: text + b" ",
        lambda text: b" " + text,
        lambda text: text.replace(b'"model":"tiny"', b'"model":"a","model":"tiny"'),
        lambda text: text.replace(b'"model":"tiny",', b""),
        lambda text: text.replace(b'"schema":1', b'"schema":1,"unknown":1'),
        lambda text: text.replace(b'"schema":1', b'"schema":"1"'),
        lambda text: text.replace(b"tiny", b"t\\u0069ny"),
        lambda text: text.replace(b'"abi_version":1', b'"abi_version":1.5'),
    ],
)
def test_what_encode_does_not_write_is_refused(change: Any) -> None:
    text = program().record().encode()
    assert change(text) != text
    with pytest.raises(ValueError, match="not a program record"):
        Record.decode(change(text))


def folder(*paths: str) -> tuple[Layer, ...]:
    return tuple(Layer(FILE_TYPE, path.encode(), path) for path in paths)


def test_a_program_can_be_a_folder() -> None:
    made = program(layers=folder("distributed_meta.json", "next_levels/chip/k.pto"))
    assert made.content(FILE_TYPE) == b"next_levels/chip/k.pto"


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ((), "expected"),
        (machine_code(b"", "", "")[:2], "expected"),
        (machine_code(b"", "", "")[::-1], "expected"),
        ((Layer(OBJECT_TYPE, b""), *folder("a")), "alone"),
        ((Layer(IR_TYPE, b""), *folder("a")), "alone"),
        (folder("b", "a"), "in the order"),
        (folder("a", "a"), "each once"),
        (folder("a", "a/b"), "both a file and a folder"),
        *[
            (folder(path), "no place in a folder")
            for path in (
                "",
                "/etc/passwd",
                "../x",
                "a/../b",
                "a//b",
                "a/",
                "./a",
                "a\\b",
                "a\0",
                "ä",
            )
        ],
        (folder("a" * 513), "no place in a folder"),
    ],
)
def test_layers_that_no_program_has(layers: tuple[Layer, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        program(layers=layers)
