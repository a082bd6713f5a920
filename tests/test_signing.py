"""Who has signed what, whom a policy trusts, and that nothing else is mapped."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_programs import build_program

import aotc
from aotc import provenance, runtime, signing
from aotc.errors import AotcError, ExitCode
from aotc.program.key import BuildKey
from aotc.program.model import canonical_json
from aotc.provenance import Build
from aotc.signing import KeyFileError, Policy, PolicyError, check_policy, sign
from aotc.store import referrers
from aotc.store.artifact import StoredProgram, find, publish, write_program
from aotc.store.cache import Cache
from aotc.store.layout import IntegrityError, Layout
from aotc.store.validate import validate

pytest.importorskip("securesystemslib")
pytest.importorskip("cryptography")

TARGET = "x86_64_v3"
KEY = BuildKey({"flags": '["-O3"]', "config.extents": '{"WIDTH":8}'})
FILES = {"wrappers.py": "1" * 64, "kernels/add.py": "2" * 64, "kernels.py": None}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A store with the programs `decode` and `prefill` of `tiny`, and their provenance."""
    layout = Layout.create(tmp_path / "store")
    stored = [write_program(layout, build_program(name=name)) for name in ("decode", "prefill")]
    publish(layout, "tiny", stored)
    provenance.record(Cache(layout), [Build(each, KEY, FILES) for each in stored])
    return layout


@pytest.fixture
def decode(layout: Layout) -> StoredProgram:
    return find(layout.root, "tiny", "decode")


def make_key(path: Path, kind: str = "ed25519") -> Path:
    """Write a private key to `path`, and its public key beside it."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    private: Any = (
        ed25519.Ed25519PrivateKey.generate()
        if kind == "ed25519"
        else ec.generate_private_key(ec.SECP256R1())
    )
    path.write_bytes(
        private.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    )
    public = private.public_key().public_bytes(
        form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo
    )
    path.with_suffix(".pub").write_bytes(public)
    return path


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """Trusts the key `release`."""
    make_key(tmp_path / "release.key")
    return write_policy(tmp_path, "schema: 1\nkeys: {release: release.pub}\n")


def write_policy(folder: Path, text: str) -> Policy:
    path = folder / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return Policy.load(path)


def sign_with(path: Path, *programs: StoredProgram) -> int:
    return sign(programs, signing.load_private_key(path))


def envelope_of(stored: StoredProgram) -> dict[str, Any]:
    (found,) = (
        each
        for each in referrers.find(stored.layout, stored.descriptor)
        if each.manifest.artifact_type == referrers.ENVELOPE_TYPE
    )
    envelope: dict[str, Any] = json.loads(found.content)
    return envelope


def attach(stored: StoredProgram, envelope: object) -> None:
    content = canonical_json(envelope)
    made = referrers.make(referrers.ENVELOPE_TYPE, content, stored.descriptor)
    referrers.attach(stored.layout, [made])


# Provenance.


def test_the_statement(decode: StoredProgram) -> None:
    found = provenance.find(decode)
    statement = json.loads(found.content)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    digest = {"sha256": decode.manifest_digest.hex}
    assert statement["subject"] == [{"name": "tiny/decode", "digest": digest}]
    assert set(statement["predicate"]) == {"buildDefinition", "runDetails"}
    assert statement["predicate"]["runDetails"]["builder"]["id"]
    parsed = provenance.parse(found.content, decode)
    assert (parsed.files, parsed.inputs) == (FILES, KEY.components)
    assert parsed.identity == decode.record.identity
    manifest = json.loads(found.text)
    assert manifest["subject"]["digest"] == str(decode.manifest_digest)
    assert manifest["schemaVersion"] == 2
    assert manifest["mediaType"] == "application/vnd.oci.image.manifest.v1+json"


def test_the_statement_is_the_same_anywhere(tmp_path: Path, decode: StoredProgram) -> None:
    other = Layout.create(tmp_path / "elsewhere" / "store")
    stored = write_program(other, build_program(name="decode"))
    publish(other, "tiny", [stored])
    provenance.record(Cache(other), [Build(stored, KEY, dict(reversed(FILES.items())))])
    ours, theirs = (provenance.find(each) for each in (decode, stored))
    assert (ours.text, ours.content) == (theirs.text, theirs.content)
    for word in (str(tmp_path), os.uname().nodename, os.environ.get("USER") or "root"):
        assert word.encode() not in ours.content


def test_nothing_is_written_where_it_is_there(layout: Layout, decode: StoredProgram) -> None:
    before = (layout.root / "index.json").stat().st_ino
    for files in (FILES, None):
        provenance.record(Cache(layout), [Build(decode, KEY, files, compiled=False)])
    assert (layout.root / "index.json").stat().st_ino == before


def test_a_new_statement_replaces_the_old(layout: Layout, decode: StoredProgram) -> None:
    provenance.record(Cache(layout), [Build(decode, KEY, {"wrappers.py": "3" * 64})])
    (found,) = provenance.statements(decode)
    assert provenance.parse(found.content, decode).files == {"wrappers.py": "3" * 64}
    assert validate(layout.root) == []


def test_a_lost_statement_is_made_again(layout: Layout, decode: StoredProgram) -> None:
    cache = Cache(layout)
    cache.record_inputs(KEY, FILES, decode)
    before = provenance.find(decode)
    (layout.root / "index.json").unlink()
    publish(layout, "tiny", [decode])
    with pytest.raises(provenance.NoProvenanceError, match="tiny/decode for x86_64_v3 has no"):
        provenance.find(decode)
    provenance.record(cache, [Build(decode, KEY, None, compiled=False)])
    assert provenance.find(decode) == before


def test_a_signature_is_no_statement(layout: Layout, decode: StoredProgram) -> None:
    """Where the signature is all that is left, the statement is made again."""
    (layout.root / "index.json").unlink()
    publish(layout, "tiny", [decode])
    attach(decode, {"payload": ""})
    provenance.record(Cache(layout), [Build(decode, KEY, FILES, compiled=False)])
    assert provenance.find(decode).content


@pytest.mark.parametrize("damage", ["bytes", "missing"])
@pytest.mark.parametrize("part", ["manifest", "statement", "config"])
def test_a_build_repairs_a_statement(
    layout: Layout, decode: StoredProgram, part: str, damage: str
) -> None:
    said: list[str] = []
    cache = Cache(layout, said.append)
    cache.record_inputs(KEY, FILES, decode)
    before = provenance.find(decode)
    parts = {
        "manifest": before.descriptor,
        "statement": before.manifest.layers[0],
        "config": before.manifest.config,
    }
    path = layout.blob_path(parts[part].blob)
    if damage == "bytes":
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    else:
        path.unlink()
    builds = [
        Build(find(layout.root, "tiny", name), KEY, None, compiled=False)
        for name in ("decode", "prefill")
    ]
    provenance.record(cache, builds)
    assert len(said) == (2 if part == "config" else 1)  # all of them have the same config
    assert said[0].startswith(f"blob {parts[part].digest} is ")
    assert any("a statement or signature on tiny/decode, set aside" in each for each in said)
    assert provenance.find(decode) == before
    assert validate(layout.root) == []
    said.clear()
    provenance.record(cache, builds)
    assert said == []


def test_a_damaged_signature_goes_and_the_others_stay(
    layout: Layout, decode: StoredProgram
) -> None:
    statement = provenance.find(decode)
    for name in ("one", "two"):
        attach(decode, {"payload": name})
    (first, second) = (
        each
        for each in referrers.find(layout, decode.descriptor)
        if each.manifest.artifact_type == referrers.ENVELOPE_TYPE
    )
    layout.blob_path(first.manifest.layers[0].blob).write_bytes(b"")
    said: list[str] = []
    provenance.record(Cache(layout, said.append), [Build(decode, KEY, None, compiled=False)])
    assert "a statement or signature on tiny/decode, set aside" in said[0]
    left = sorted(each.text for each in referrers.find(layout, decode.descriptor))
    assert left == sorted([second.text, statement.text])
    assert validate(layout.root) == []


def test_what_no_key_has_is_stated(layout: Layout, decode: StoredProgram) -> None:
    outside = ("wrappers.py:5 reads the environment variable FACTOR",)
    files = {**FILES, "module:yaml": f"PyYAML 6.0 sha256:{'4' * 64}", "module:none": None}
    provenance.record(Cache(layout), [Build(decode, KEY, files, outside)])
    said = provenance.parse(provenance.find(decode).content, decode)
    assert (said.files, said.outside) == (files, outside)
    dependencies = json.loads(provenance.find(decode).content)["predicate"]["buildDefinition"]
    assert {
        "name": "module:yaml",
        "digest": {"sha256": "4" * 64},
        "annotations": {"id": "PyYAML 6.0"},
    } in dependencies["resolvedDependencies"]


@pytest.mark.parametrize("part", ["inputs", "absent", "resolvedDependencies", "identity"])
def test_a_statement_of_another_shape(decode: StoredProgram, part: str) -> None:
    statement = json.loads(provenance.find(decode).content)
    definition = statement["predicate"]["buildDefinition"]
    holder = definition if part in definition else definition["internalParameters"]
    holder[part] = [{"digest": 1}]
    with pytest.raises(provenance.StatementError, match="not an in-toto statement"):
        provenance.parse(canonical_json(statement), decode)


def test_a_statement_survives_the_next_publication(layout: Layout, decode: StoredProgram) -> None:
    publish(layout, "other", [write_program(layout, build_program("other"))])
    assert provenance.find(find(layout.root, "tiny", "decode")).content
    assert validate(layout.root) == []


def test_damage_is_found(layout: Layout, decode: StoredProgram) -> None:
    found = provenance.find(decode)
    for descriptor in (found.descriptor, found.manifest.layers[0]):
        path = layout.blob_path(descriptor.blob)
        intact = path.read_bytes()
        path.write_bytes(intact[:-1] + b"x")
        assert [each.where for each in validate(layout.root, "tiny")] == [
            f"index.json > referrer to {decode.manifest_digest}"
        ]
        with pytest.raises(IntegrityError):
            provenance.find(decode)
        path.write_bytes(intact)


# Signatures.


def test_signed_and_trusted(layout: Layout, decode: StoredProgram, policy: Policy) -> None:
    key = policy.path.with_name("release.key")
    assert sign_with(key, decode) == 1
    assert str(check_policy(policy, decode)) == "signed by release"
    with pytest.raises(PolicyError, match=r"`prefill` of `tiny` .* is not signed by release"):
        check_policy(policy, find(layout.root, "tiny", "prefill"))
    # Again it is the same signature.
    before = (layout.root / "index.json").read_bytes()
    assert sign_with(key, decode) == 0
    assert (layout.root / "index.json").read_bytes() == before
    assert validate(layout.root) == []


def test_it_is_dsse(decode: StoredProgram, policy: Policy, tmp_path: Path) -> None:
    """Any other implementation can check it: here the one of OpenSSL, on the text by the book."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    sign_with(policy.path.with_name("release.key"), decode)
    envelope = envelope_of(decode)
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"]
    assert payload == provenance.find(decode).content
    signed = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    (tmp_path / "signed").write_bytes(signed)
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-rawin", "-inkey", "release.pub"]
    done = subprocess.run(
        [*command, "-in", "signed", "-sigfile", "sig"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Verified Successfully" in done.stdout, done.stderr


def test_a_stranger_signs(decode: StoredProgram, policy: Policy, tmp_path: Path) -> None:
    sign_with(make_key(tmp_path / "stranger.key"), decode)
    with pytest.raises(PolicyError, match=r"is not signed by release, but with [0-9a-f]{12}$"):
        check_policy(policy, decode)


def test_a_stranger_claims_the_key(decode: StoredProgram, policy: Policy, tmp_path: Path) -> None:
    sign_with(make_key(tmp_path / "stranger.key"), decode)
    envelope = envelope_of(decode)
    envelope["signatures"][0]["keyid"] = policy.keys["release"].keyid
    attach(decode, envelope)
    with pytest.raises(PolicyError, match="is not signed by release"):
        check_policy(policy, decode)


def test_a_signature_of_another_program(
    layout: Layout, decode: StoredProgram, policy: Policy
) -> None:
    prefill = find(layout.root, "tiny", "prefill")
    sign_with(policy.path.with_name("release.key"), prefill)
    attach(decode, envelope_of(prefill))
    with pytest.raises(PolicyError, match="the statement is not on sha256:"):
        check_policy(policy, decode)


def flip(text: str) -> str:
    content = bytearray(base64.b64decode(text))
    content[len(content) // 2] ^= 1
    return base64.b64encode(content).decode()


@pytest.mark.parametrize(
    "change",
    [
        lambda each: each.update(payload=flip(each["payload"])),
        lambda each: each["signatures"][0].update(sig=flip(each["signatures"][0]["sig"])),
        lambda each: each["signatures"][0].update(sig=""),
        lambda each: each["signatures"][0].update(sig="?"),
        lambda each: each["signatures"][0].update(keyid=""),
        lambda each: each.update(payloadType="application/json"),
        lambda each: each.update(payload="?"),
        lambda each: each.update(signatures=[]),
        lambda each: each.update(signatures=each["signatures"] * 2),
        lambda each: each.pop("payload"),
        lambda each: each.clear(),
    ],
)
def test_a_changed_envelope(
    tmp_path: Path, layout: Layout, decode: StoredProgram, policy: Policy, change: Any
) -> None:
    sign_with(policy.path.with_name("release.key"), decode)
    envelope = envelope_of(decode)
    change(envelope)
    text = canonical_json(envelope)
    with pytest.raises(PolicyError, match="is not signed by release"):
        signing.check_envelopes(policy, decode, [text])


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"payload": 1}'])
def test_no_envelope(decode: StoredProgram, policy: Policy, text: bytes) -> None:
    with pytest.raises(PolicyError, match="is not signed by release"):
        signing.check_envelopes(policy, decode, [text])


def test_two_of_three(decode: StoredProgram, tmp_path: Path) -> None:
    names = ("build", "review", "release")
    keys = {name: make_key(tmp_path / f"{name}.key") for name in names}
    text = "schema: 1\nthreshold: 2\nkeys: {build: build.pub, review: review.pub, x: release.pub}\n"
    policy = write_policy(tmp_path, text)
    sign_with(keys["build"], decode)
    sign_with(keys["build"], decode)
    with pytest.raises(PolicyError, match="not signed by 2 of build and review and x, only by 1"):
        check_policy(policy, decode)
    sign_with(keys["release"], decode)
    assert str(check_policy(policy, decode)) == "signed by build, x"


def test_required_provenance(decode: StoredProgram, policy: Policy, tmp_path: Path) -> None:
    sign_with(policy.path.with_name("release.key"), decode)
    head = "schema: 1\nkeys: {release: release.pub}\n"
    trusted = write_policy(tmp_path, head + "provenance: {toolchain: 'clang 1 sha256:00'}\n")
    assert str(check_policy(trusted, decode)) == "signed by release"
    for component, value, found in (
        ("toolchain", "clang 2", "clang 1 sha256:00"),
        ("reviewed_by", "somebody", "None"),
    ):
        other = write_policy(tmp_path, head + f"provenance: {{{component}: {value}}}\n")
        with pytest.raises(PolicyError) as caught:
            check_policy(other, decode)
        assert f"`{component}` is `{found}`, the policy wants `{value}`" in caught.value.message


def test_a_false_statement_is_not_signed(decode: StoredProgram, policy: Policy) -> None:
    other = build_program(name="prefill")
    stored = write_program(decode.layout, other)
    text = provenance.statement(stored, KEY, FILES)
    referrers.attach(
        decode.layout, [referrers.make(referrers.STATEMENT_TYPE, text, decode.descriptor)]
    )
    with pytest.raises(provenance.StatementError, match="is not on"):
        sign_with(policy.path.with_name("release.key"), decode)


def test_without_provenance(tmp_path: Path, policy: Policy) -> None:
    layout = Layout.create(tmp_path / "bare")
    stored = write_program(layout, build_program())
    publish(layout, "tiny", [stored])
    with pytest.raises(provenance.NoProvenanceError) as caught:
        sign_with(policy.path.with_name("release.key"), stored)
    assert caught.value.hint == "`aotc build tiny --target x86_64_v3` records it"


def test_damaged_signatures_are_no_signatures(
    layout: Layout, decode: StoredProgram, policy: Policy
) -> None:
    sign_with(policy.path.with_name("release.key"), decode)
    (found,) = (
        each
        for each in referrers.find(layout, decode.descriptor)
        if each.manifest.artifact_type == referrers.ENVELOPE_TYPE
    )
    layout.blob_path(found.manifest.layers[0].blob).write_bytes(b"")
    with pytest.raises(IntegrityError):
        check_policy(policy, decode)


# Keys and policies.


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has no private key in PEM form"),
        (b"-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n", "has no private key"),
        (None, "cannot read the key .*: No such file"),
    ],
)
def test_bad_private_keys(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(KeyFileError, match=problem):
        signing.load_private_key(path)


def test_keys_of_another_kind(tmp_path: Path) -> None:
    path = make_key(tmp_path / "ec.key", "ec")
    for load, name in ((signing.load_private_key, path), (signing.load_public_key, "ec.pub")):
        with pytest.raises(KeyFileError, match="is not an ed25519 key"):
            load(tmp_path / name)
    with pytest.raises(KeyFileError, match="has no public key in PEM form"):
        signing.load_public_key(make_key(tmp_path / "private.key"))


def test_an_encrypted_key(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    secret = form.BestAvailableEncryption(b"secret")
    path = tmp_path / "key"
    path.write_bytes(
        Ed25519PrivateKey.generate().private_bytes(
            form.Encoding.PEM, form.PrivateFormat.PKCS8, secret
        )
    )
    with pytest.raises(KeyFileError, match="is encrypted"):
        signing.load_private_key(path)


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        ("schema: 2\nkeys: {}\n", "`schema`: `2` is not one of 1", 1),
        ("schema: 1\n", "missing key `keys`", 1),
        ("schema: 1\nkeys: {}\n", "1 signatures are wanted of 0 trusted keys", 2),
        ("schema: 1\nkeys: {a: a.pub}\nthreshold: 2\n", "2 signatures are wanted of 1", 3),
        ("schema: 1\nkeys: {a: a.pub}\nthreshold: 0\n", "threshold", 3),
        ("schema: 1\nkeys: {a: a.pub}\ntrust: all\n", "unknown key `trust`", 3),
        ("schema: 1\nkeys:\n  a: a.pub\n  b: a.pub\n", "`b` is the same key as `a`", 4),
    ],
)
def test_bad_policies(tmp_path: Path, text: str, problem: str, line: int) -> None:
    make_key(tmp_path / "a.key")
    with pytest.raises(AotcError) as caught:
        write_policy(tmp_path, text)
    assert problem in caught.value.message
    assert caught.value.place is not None
    assert caught.value.place.line == line


# The loader.


def test_the_loader_refuses_the_unsigned_before_it_maps(layout: Layout, policy: Policy) -> None:
    """The code of these programs is none: were it mapped, that would be another error."""
    from aotc.runtime.host import Host

    if "x86_64_v3" not in Host.current().targets():
        pytest.skip("no x86_64_v3 here")
    with pytest.raises(PolicyError, match="is not signed by release") as caught:
        runtime.load("tiny", "decode", layout.root, policy=policy.path)
    assert caught.value.exit_code is ExitCode.INTEGRITY
    sign_with(policy.path.with_name("release.key"), find(layout.root, "tiny", "decode"))
    with pytest.raises(runtime.LoadError):
        runtime.load("tiny", "decode", layout.root, policy=policy.path)


def test_the_loader_without_policy_needs_no_packages(layout: Layout) -> None:
    code = (
        "import sys\n"
        "for name in ('yaml', 'cryptography', 'securesystemslib', 'oras'):\n"
        "    sys.modules[name] = None\n"
        "from aotc.runtime import load, LoadError\n"
        "try: load('tiny', 'decode', sys.argv[1])\n"
        "except LoadError as error: print(error)\n"
    )
    package = str(Path(aotc.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, str(layout.root)],
        env={**os.environ, "PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_packages_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make_key(tmp_path / "key")
    monkeypatch.setattr(signing, "find_spec", lambda name: None if name == "cryptography" else 1)
    with pytest.raises(signing.MissingPackageError, match="need the package `cryptography`"):
        signing.load_private_key(key)
