"""Signatures of programs, and the policy that says whose are wanted.

What is signed is the provenance statement of a program, which names the program's manifest by
digest: in a DSSE envelope, with ed25519. The envelope is a referrer of the program, beside it in
the store and in a registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from aotc import provenance
from aotc.errors import AotcError, ExitCode
from aotc.program.model import canonical_json
from aotc.provenance import Provenance
from aotc.store import referrers
from aotc.store.artifact import StoredProgram
from aotc.store.referrers import Referrer

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

_MAX_KEY_FILE = 1 << 16  # bytes


class KeyFileError(AotcError):
    """A key file cannot be used."""


class PolicyError(AotcError):
    """A program is not what the policy trusts."""

    exit_code = ExitCode.INTEGRITY


class MissingPackageError(AotcError):
    """Signing and checking signatures need packages that are not installed."""

    exit_code = ExitCode.ENVIRONMENT


class _PolicyFile(msgspec.Struct, frozen=True):
    schema: Literal[1]
    keys: dict[str, str]
    threshold: Annotated[int, msgspec.Meta(ge=1)] = 1
    provenance: dict[str, str] = {}


@dataclass(frozen=True)
class Policy:
    """Whose signatures are trusted, how many of them are wanted, and what must be signed.

    `keys` are public keys by the name that the policy gives them. `components` are components of
    a program's build key (`aotc show` prints them) and the value that each must have.
    """

    path: Path
    keys: Mapping[str, SSlibKey]
    threshold: int
    components: Mapping[str, str]

    @classmethod
    def load(cls, path: Path | str) -> Policy:
        """Read a policy; the key files that it names lie relative to it.

        Raises AotcError for a mistake in it, with its place, and for a key that cannot be read.
        """
        from aotc.document import Document  # needs yaml, which a loader without policy does not

        document = Document(Path(path))
        file = document.convert(_PolicyFile)
        keys: dict[str, SSlibKey] = {}
        for name, key_path in file.keys.items():
            key = load_public_key(document.path.parent / key_path)
            for other, known in keys.items():
                if known.keyid == key.keyid:
                    place = document.keys[("keys", name)]
                    raise AotcError(f"`{name}` is the same key as `{other}`", place=place)
            keys[name] = key
        if file.threshold > len(keys):
            place = document.values.get(("threshold",), document.values[("keys",)])
            message = f"{file.threshold} signatures are wanted of {len(keys)} trusted keys"
            raise AotcError(message, place=place)
        return cls(document.path, keys, file.threshold, file.provenance)


def load_private_key(path: Path) -> CryptoSigner:
    """Return the ed25519 key in a PEM file of PKCS 8; raise KeyFileError where it has none."""
    content = _read_key(path)
    _require_packages()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    try:
        key = load_pem_private_key(content, None)
    except TypeError:
        raise KeyFileError(
            f"{path} is encrypted", hint=f"`openssl pkey -in {path}` decrypts it"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError(f"{path} has no private key in PEM form", hint=_HOW_TO_MAKE) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} is not an ed25519 key", hint=_HOW_TO_MAKE)
    return CryptoSigner(key)


def load_public_key(path: Path) -> SSlibKey:
    """Return the ed25519 public key in a PEM file; raise KeyFileError where it has none."""
    content = _read_key(path)
    _require_packages()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise KeyFileError(f"{path} has no public key in PEM form", hint=_HOW_TO_EXPORT) from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path} is not an ed25519 key", hint=_HOW_TO_MAKE)
    return SSlibKey.from_crypto(key)


def sign(programs: Iterable[StoredProgram], signer: CryptoSigner) -> int:
    """Sign the statement of each program, and keep the envelopes beside them, at one point.

    Returns how many were not signed with this key yet. Raises NoProvenanceError for a program
    without a statement, StatementError for one whose statement is not its own, and StoreError
    where a store cannot be written.
    """
    _require_packages()
    from securesystemslib.dsse import Envelope

    made: list[tuple[StoredProgram, Referrer]] = []
    for stored in programs:
        text = provenance.find(stored).content
        provenance.parse(text, stored)  # nothing false gets a signature
        envelope = Envelope(text, referrers.STATEMENT_TYPE, {})
        envelope.sign(signer)
        content = canonical_json(envelope.to_dict())
        made.append((stored, referrers.make(referrers.ENVELOPE_TYPE, content, stored.descriptor)))
    layouts = {stored.layout.root: stored.layout for stored, _ in made}
    return sum(
        referrers.attach(layout, [each for stored, each in made if stored.layout.root == root])
        for root, layout in layouts.items()
    )


@dataclass(frozen=True)
class Trusted:
    """Who has signed a program, and what they have signed of where it comes from."""

    signers: tuple[str, ...]
    provenance: Provenance

    def __str__(self) -> str:
        return f"signed by {', '.join(self.signers)}"


def check_policy(policy: Policy, stored: StoredProgram) -> Trusted:
    """Check that `stored` is what `policy` trusts; return the names of who signed it, and what.

    Only bytes are read, nothing of the program is run. Raises PolicyError where it is not trusted,
    and IntegrityError where a signature in the store is damaged.
    """
    return check_envelopes(
        policy,
        stored,
        [
            each.content
            for each in referrers.find(stored.layout, stored.descriptor)
            if each.manifest.artifact_type == referrers.ENVELOPE_TYPE
        ],
    )


def check_envelopes(policy: Policy, stored: StoredProgram, envelopes: Iterable[bytes]) -> Trusted:
    """As `check_policy`, with the texts of the envelopes on `stored`, wherever they are from."""
    name = f"`{stored.program}` of `{stored.model}` for {stored.target}"
    trusted: dict[bytes, set[str]] = {}  # statement to the names of who signed it
    strangers: set[str] = set()
    for text in envelopes:
        statement, signers, unknown = _signers(text, policy.keys)
        strangers |= unknown
        trusted.setdefault(statement, set()).update(signers)
    problems = []
    for statement, signers in trusted.items():
        if len(signers) < policy.threshold:
            continue
        try:
            said = provenance.parse(statement, stored)
        except provenance.StatementError as error:
            problems.append(error.message)
            continue
        differing = [
            f"`{component}` is `{said.identity.get(component)}`, the policy wants `{value}`"
            for component, value in policy.components.items()
            if said.identity.get(component) != value
        ]
        if not differing:
            return Trusted(tuple(sorted(signers)), said)
        problems += differing
    if problems:
        raise PolicyError(f"{name}: {'; '.join(problems)}", hint=f"the policy is {policy.path}")
    found = max(map(len, trusted.values()), default=0)
    wanted = " and ".join(policy.keys) if policy.threshold > 1 else " or ".join(policy.keys)
    if policy.threshold > 1:
        wanted = f"{policy.threshold} of {wanted}"
    message = f"{name} is not signed by {wanted}"
    if found:
        message += f", only by {found} of them"
    elif strangers:
        message += f", but with {', '.join(sorted(each[:12] for each in strangers))}"
    raise PolicyError(message, hint=f"`aotc sign {stored.model} --key KEY` signs it")


class _Signature(msgspec.Struct, frozen=True):
    keyid: str
    sig: str


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    payload: str
    payload_type: str
    signatures: tuple[_Signature, ...]


def _signers(text: bytes, keys: Mapping[str, SSlibKey]) -> tuple[bytes, set[str], set[str]]:
    """Return the statement in an envelope, whose of `keys` have signed it, and other key ids.

    What is no envelope, or has a false signature, nobody has signed.
    """
    _require_packages()
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import Error

    try:
        envelope = Envelope.from_dict(
            msgspec.to_builtins(msgspec.json.decode(text, type=_Envelope), builtin_types=())
        )
    except (msgspec.MsgspecError, ValueError, LookupError, Error, RecursionError):
        return b"", set(), set()
    if envelope.payload_type != referrers.STATEMENT_TYPE:
        return b"", set(), set()
    signers = set()
    for name, key in keys.items():
        try:
            envelope.verify([key], 1)
        except (Error, ValueError):
            continue
        signers.add(name)
    known = {key.keyid for key in keys.values()}
    return envelope.payload, signers, set(envelope.signatures) - known


_HOW_TO_MAKE = "`openssl genpkey -algorithm ed25519 -out KEY` makes one"
_HOW_TO_EXPORT = "`openssl pkey -in KEY -pubout -out KEY.pub` writes one"


def _read_key(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_KEY_FILE)
    except OSError as error:
        raise KeyFileError(f"cannot read the key {path}: {error.strerror}") from None


def _require_packages() -> None:
    for name in ("cryptography", "securesystemslib"):
        if find_spec(name) is None:
            raise MissingPackageError(
                f"signatures need the package `{name}`", hint="pip install 'aotc[signing]'"
            )
