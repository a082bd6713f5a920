"""Another implementation of OCI layouts reads a store, and aotc reads what that has written."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tiny_programs import build_program

from aotc.store.artifact import find, list_programs, publish, write_program
from aotc.store.layout import Layout
from aotc.store.validate import validate

pytestmark = pytest.mark.skipif(
    shutil.which("skopeo") is None, reason="no skopeo: apt-get install skopeo"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    layout = Layout.create(tmp_path / "store")
    for model in ("tiny", "other"):
        programs = [
            write_program(layout, build_program(model, name, target=target, code=name.encode()))
            for name in ("decode", "prefill")
            for target in ("x86_64_v3", "x86_64_v4", "aarch64")
        ]
        publish(layout, model, programs)
    return layout.root


def skopeo(*arguments: str) -> str:
    # Without a policy of the machine: what is tested is the format.
    command = ["skopeo", "--insecure-policy", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_inspect(root: Path) -> None:
    index = json.loads(skopeo("inspect", "--raw", f"oci:{root}:tiny"))
    platforms = [each["platform"]["architecture"] for each in index["manifests"]]
    assert sorted(platforms) == ["amd64"] * 4 + ["arm64"] * 2


def test_what_it_copies_verifies_and_loads(root: Path, tmp_path: Path) -> None:
    copy, back = tmp_path / "copy", tmp_path / "back"
    for model in ("tiny", "other"):
        skopeo("copy", "--all", f"oci:{root}:{model}", f"oci:{copy}:{model}")
        skopeo("copy", "--all", f"oci:{copy}:{model}", f"oci:{back}:{model}")
    for place in (copy, back):
        assert validate(place) == []
        assert list_programs(place) == list_programs(root)
        for entry in list_programs(root):
            ours = find(root, entry.model, entry.program, entry.target)
            theirs = find(place, entry.model, entry.program, entry.target)
            assert theirs.blobs == ours.blobs
            assert theirs.manifest_digest == ours.manifest_digest
    # And aotc goes on in what it has made.
    layout = Layout.create(copy)
    publish(layout, "tiny", [write_program(layout, build_program(code=b"new"))])
    assert validate(copy) == []
    assert skopeo("inspect", "--raw", f"oci:{copy}:tiny")
    assert find(copy, "tiny", "decode", "x86_64_v3").object_bytes() == b"new"


def test_it_refuses_what_we_refuse(root: Path, tmp_path: Path) -> None:
    stored = find(root, "tiny", "decode", "aarch64")
    stored.layout.blob_path(stored.digests[0]).write_bytes(b"decodf")
    assert validate(root, "tiny") != []
    with pytest.raises(AssertionError, match="sha256"):
        skopeo("copy", "--all", f"oci:{root}:tiny", f"oci:{tmp_path / 'copy'}:tiny")
