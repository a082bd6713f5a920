"""Qwen3 weights in the stacked layout of the programs, from safetensors or at random.

Every function fills memory that the caller allocates, on a device or not, one checkpoint tensor at
a time from the mapped file, so that no weight is in memory twice. The result maps the parameter
names of the wrappers to what `allocate` returned:

| name                                  | dtype | shape                                      |
| ------------------------------------- | ----- | ------------------------------------------ |
| input_rms_weight, post_rms_weight     | fp32  | [layers, HIDDEN]                           |
| q_norm_weight, k_norm_weight          | fp32  | [layers, HEAD_DIM]                         |
| wq                                    | bf16  | [layers * HIDDEN, NUM_HEADS * HEAD_DIM]    |
| wk, wv                                | bf16  | [layers * HIDDEN, NUM_KV_HEADS * HEAD_DIM] |
| wo                                    | bf16  | [layers * NUM_HEADS * HEAD_DIM, HIDDEN]    |
| w_gate, w_up                          | bf16  | [layers * HIDDEN, INTERMEDIATE]            |
| w_down                                | bf16  | [layers * INTERMEDIATE, HIDDEN]            |
| final_norm_weight                     | fp32  | [1, HIDDEN]                                |
| embed_weight, lm_head_weight          | bf16  | [VOCAB, HIDDEN], zero from row REAL_VOCAB  |

A projection multiplies from the right, `x @ w`: it is the transpose of the checkpoint's matrix.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotc.errors import AotcError, ExitCode
from aotc.runtime.host import available_cores

if TYPE_CHECKING:
    from torch import Tensor

Names = Mapping[str, int | float]
# (parameter name, shape, dtype "bf16" or "fp32") -> memory to fill: a torch tensor of that shape
# and dtype, or what torch views by DLPack, as a `DeviceTensor` is.
Allocate = Callable[[str, tuple[int, ...], str], Any]

# Fields of a checkpoint's config.json that a name of the model config must equal.
_EQUAL = {
    "hidden_size": "HIDDEN",
    "intermediate_size": "INTERMEDIATE",
    "num_hidden_layers": "NUM_LAYERS",
    "num_attention_heads": "NUM_HEADS",
    "num_key_value_heads": "NUM_KV_HEADS",
    "head_dim": "HEAD_DIM",
    "vocab_size": "REAL_VOCAB",
    "rms_norm_eps": "EPS",
    "rope_theta": "ROPE_THETA",
}
# Fields that the programs support one value of, and that a checkpoint may leave out.
_FIXED = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
    "rope_type": "default",
}
_SHAPE_NAMES = {*_EQUAL.values(), "VOCAB"} - {"EPS", "ROPE_THETA"}
_FLOATS = ("BF16", "F16", "F32")
_STRIP = 128  # columns that are transposed at a time: some cache lines of each row
_FILL_STEP = 1 << 20  # elements drawn at a time: they stay in the cache
_LM_HEAD = "lm_head.weight"


class WeightsError(AotcError):
    """A checkpoint cannot be used: it is damaged, incomplete, or of another model."""


@dataclass(frozen=True)
class _Weight:
    """A stacked tensor: `source` names it in the checkpoint, `shape` is one layer's there."""

    name: str
    source: str
    shape: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows that one layer has in the stacked tensor."""
        return self.shape[1] if len(self.shape) == 2 else 1

    @property
    def columns(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> str:
        return "bf16" if len(self.shape) == 2 else "fp32"

    def source_of(self, layer: int) -> str:
        return f"model.layers.{layer}.{self.source}"


def host_memory(name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Allocate in ordinary memory: the plainest `Allocate`."""
    import torch

    return torch.empty(shape, dtype={"bf16": torch.bfloat16, "fp32": torch.float32}[dtype])


def view(memory: Any) -> Tensor:
    """Return a torch tensor over what an `Allocate` returned."""
    import torch
    from torch.utils.dlpack import from_dlpack

    return memory if isinstance(memory, torch.Tensor) else from_dlpack(memory)


def load_weights(
    directory: Path, names: Names, allocate: Allocate = host_memory, *, layers: int | None = None
) -> dict[str, Any]:
    """Read a Hugging Face checkpoint: config.json, and safetensors in one file or in shards.

    `names` are those of the model config: HIDDEN, NUM_HEADS, EPS, ROPE_THETA, ... `layers` takes
    the first so many layers. With tied embeddings `lm_head_weight` is the tensor `embed_weight`.

    Raises WeightsError where config.json does not agree with `names`, and for a tensor that is
    missing, unknown, or of another shape or dtype.
    """
    _require(names, _SHAPE_NAMES | {"EPS", "ROPE_THETA"})
    layers = _layer_count(layers, names)
    tied = _read_config(directory, names)
    with ExitStack() as stack:
        checkpoint = _Checkpoint(directory, stack)
        _check_tensors(checkpoint, names, layers, tied)
        weights: dict[str, Any] = {}
        for weight in _stacked(names):
            for layer, block in enumerate(_blocks(weight, layers, weights, allocate)):
                _transpose(block, checkpoint.read(weight.source_of(layer)))
        hidden = int(names["HIDDEN"])
        weights["final_norm_weight"] = allocate("final_norm_weight", (1, hidden), "fp32")
        view(weights["final_norm_weight"]).copy_(checkpoint.read("model.norm.weight"))
        for name, source in _vocabulary(tied).items():
            weights[name] = allocate(name, (int(names["VOCAB"]), hidden), "bf16")
            target, rows = view(weights[name]), int(names["REAL_VOCAB"])
            target[:rows].copy_(checkpoint.read(source))
            target[rows:].zero_()
    if tied:
        weights["lm_head_weight"] = weights["embed_weight"]
    return weights


def random_weights(
    names: Names, seed: int, allocate: Allocate = host_memory, *, layers: int | None = None
) -> dict[str, Any]:
    """Return random weights, of a scale that keeps activations near one; equal for equal `seed`.

    A layer's values depend on the seed and the layer alone: fewer `layers` are the first ones.
    """
    _require(names, _SHAPE_NAMES)
    layers = _layer_count(layers, names)
    hidden, real_vocab = int(names["HIDDEN"]), int(names["REAL_VOCAB"])
    weights: dict[str, Any] = {}
    for weight in _stacked(names):
        for layer, block in enumerate(_blocks(weight, layers, weights, allocate)):
            if weight.dtype == "fp32":
                _fill(block, seed, weight.source_of(layer), mean=1.0, deviation=0.1)
            else:
                _fill(block, seed, weight.source_of(layer), deviation=weight.rows**-0.5)
    weights["final_norm_weight"] = allocate("final_norm_weight", (1, hidden), "fp32")
    _fill(view(weights["final_norm_weight"]), seed, "final", mean=1.0, deviation=0.1)
    for name, deviation in (("embed_weight", 1.0), ("lm_head_weight", hidden**-0.5)):
        weights[name] = allocate(name, (int(names["VOCAB"]), hidden), "bf16")
        target = view(weights[name])
        _fill(target[:real_vocab], seed, name, deviation=deviation)
        target[real_vocab:].zero_()
    return weights


def rope_tables(names: Names, positions: int, allocate: Allocate = host_memory) -> tuple[Any, Any]:
    """Return `rope_cos` and `rope_sin`, fp32 [positions, HEAD_DIM], whose halves are alike.

    Angles are computed in fp64, so that a late position is as exact as an early one.
    """
    import torch

    _require(names, {"HEAD_DIM", "ROPE_THETA"})
    dim = int(names["HEAD_DIM"])
    exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
    frequencies = float(names["ROPE_THETA"]) ** -exponents
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    cos = allocate("rope_cos", (positions, dim), "fp32")
    sin = allocate("rope_sin", (positions, dim), "fp32")
    view(cos).copy_(torch.cos(angles).repeat(1, 2))
    view(sin).copy_(torch.sin(angles).repeat(1, 2))
    return cos, sin


def _stacked(names: Names) -> tuple[_Weight, ...]:
    hidden, inner, dim = (int(names[each]) for each in ("HIDDEN", "INTERMEDIATE", "HEAD_DIM"))
    q, kv = int(names["NUM_HEADS"]) * dim, int(names["NUM_KV_HEADS"]) * dim
    return (
        _Weight("input_rms_weight", "input_layernorm.weight", (hidden,)),
        _Weight("wq", "self_attn.q_proj.weight", (q, hidden)),
        _Weight("wk", "self_attn.k_proj.weight", (kv, hidden)),
        _Weight("wv", "self_attn.v_proj.weight", (kv, hidden)),
        _Weight("q_norm_weight", "self_attn.q_norm.weight", (dim,)),
        _Weight("k_norm_weight", "self_attn.k_norm.weight", (dim,)),
        _Weight("wo", "self_attn.o_proj.weight", (hidden, q)),
        _Weight("w_gate", "mlp.gate_proj.weight", (inner, hidden)),
        _Weight("w_up", "mlp.up_proj.weight", (inner, hidden)),
        _Weight("w_down", "mlp.down_proj.weight", (hidden, inner)),
        _Weight("post_rms_weight", "post_attention_layernorm.weight", (hidden,)),
    )


def _blocks(
    weight: _Weight, layers: int, weights: dict[str, Any], allocate: Allocate
) -> Iterator[Tensor]:
    """Allocate a stacked tensor into `weights`; yield the block of each layer."""
    memory = allocate(weight.name, (layers * weight.rows, weight.columns), weight.dtype)
    weights[weight.name] = memory
    yield from view(memory).view(layers, weight.rows, weight.columns)


def _transpose(target: Tensor, source: Tensor) -> None:
    """Store `source`, rounded to the dtype of `target`, with its dimensions swapped.

    In strips on all cores, by numpy: torch, at a third of the speed, has one thread do it.
    """
    if source.dim() == 1:
        target.copy_(source)
        return
    whole = _bits(target)

    def store(first: int) -> None:
        whole[:, first : first + _STRIP] = _bits(source[first : first + _STRIP].to(target.dtype)).T

    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(store, range(0, len(source), _STRIP)))


def _bits(tensor: Tensor) -> Any:
    """Return a numpy array over the bf16 elements of `tensor`."""
    import torch

    return tensor.view(torch.int16).numpy()


def _vocabulary(tied: bool) -> dict[str, str]:
    embed = {"embed_weight": "model.embed_tokens.weight"}
    return embed if tied else {**embed, "lm_head_weight": _LM_HEAD}


def _require(names: Names, needed: Set[str]) -> None:
    missing = sorted(needed - set(names))
    if missing:
        raise AotcError(
            f"the model config does not give {', '.join(f'`{each}`' for each in missing)}",
            hint="weights of Qwen3 need these names",
        )


def _layer_count(layers: int | None, names: Names) -> int:
    most = int(names["NUM_LAYERS"])
    if layers is not None and not 1 <= layers <= most:
        raise AotcError(f"layers must be from 1 to {most}, got {layers}")
    return layers or most


def _fill(block: Tensor, seed: int, name: str, *, mean: float = 0.0, deviation: float) -> None:
    """Draw from a uniform distribution: 16 random bits an element, several times as fast as normal.

    numpy promises the stream of a bit generator for all versions, torch does not.
    """
    import numpy
    import torch

    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    source = numpy.random.SFC64(int.from_bytes(digest[:16], "little"))
    for part in block.view(-1).split(_FILL_STEP):  # type: ignore[no-untyped-call]
        bits = source.random_raw(-(-part.numel() // 4)).view(numpy.int16)
        # The standard deviation of all int16 is 2**16 / sqrt(12).
        part.copy_(torch.from_numpy(bits[: part.numel()]))
        part.mul_(deviation * 12**0.5 / 2**16).add_(mean)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise WeightsError(f"{path} is not JSON") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path} is not a JSON object")
    return content


def _read_config(directory: Path, names: Names) -> bool:
    """Check config.json against `names`; return whether the embeddings are tied."""
    path = directory / "config.json"
    config = _read_json(path)
    # Newer versions of transformers nest what belongs to RoPE.
    for key in ("rope_parameters", "rope_scaling"):
        if isinstance(config.get(key), dict):
            config = {**config, **config[key]}
    problems = []
    for field, name in _EQUAL.items():
        if field not in config:
            problems.append(f"`{field}` is missing")
        elif config[field] != names[name]:
            problems.append(f"`{field}` is {config[field]!r}, and {name} is {names[name]!r}")
    for field, value in _FIXED.items():
        if config.get(field, value) != value:
            problems.append(f"`{field}` is {config[field]!r}, and only {value!r} is supported")
    if problems:
        raise WeightsError(
            f"{path} is not of this model: {'; '.join(problems)}",
            hint="choose the model whose config agrees, or another checkpoint",
        )
    return bool(config.get("tie_word_embeddings", False))


class _Checkpoint:
    """The tensors of a safetensors file or of its shards, mapped, by name."""

    def __init__(self, directory: Path, stack: ExitStack):
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            error = WeightsError(
                "reading safetensors needs the package `safetensors`",
                hint="pip install safetensors",
            )
            error.exit_code = ExitCode.ENVIRONMENT
            raise error from None
        self.directory = directory
        self._files: dict[str, Any] = {}
        for path in self._paths():
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except OSError as error:
                raise WeightsError(f"cannot read {path}: {error.strerror or error}") from None
            except SafetensorError as error:
                raise WeightsError(f"{path} is not a safetensors file: {error}") from None
            for name in file.keys():
                self._files[name] = file

    def _paths(self) -> Iterator[Path]:
        index = self.directory / "model.safetensors.index.json"
        if not index.exists():
            yield self.directory / "model.safetensors"
            return
        weight_map = _read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise WeightsError(f"{index} has no `weight_map`")
        for shard in sorted({str(each) for each in weight_map.values()}):
            if Path(shard).name != shard:
                raise WeightsError(f"{index} names a file outside its directory: {shard}")
            yield self.directory / shard

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return dtype and shape."""
        part = self._files[name].get_slice(name)
        return part.get_dtype(), tuple(part.get_shape())

    def read(self, name: str) -> Tensor:
        """Return the tensor, a view of the mapped file."""
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor


def _check_tensors(checkpoint: _Checkpoint, names: Names, layers: int, tied: bool) -> None:
    hidden, real_vocab = int(names["HIDDEN"]), int(names["REAL_VOCAB"])
    expected: dict[str, tuple[int, ...]] = {"model.norm.weight": (hidden,)}
    for source in _vocabulary(tied).values():
        expected[source] = (real_vocab, hidden)
    for layer in range(layers):
        for weight in _stacked(names):
            expected[weight.source_of(layer)] = weight.shape
    found = set(checkpoint)
    problems = [f"`{name}` is missing" for name in expected if name not in found]
    for name, shape in expected.items():
        if name not in found:
            continue
        dtype, actual = checkpoint.describe(name)
        if actual != shape:
            problems.append(f"`{name}` has shape {list(actual)}, expected {list(shape)}")
        if dtype not in _FLOATS:
            problems.append(f"`{name}` is {dtype}, expected one of {', '.join(_FLOATS)}")
    # Layers that were not asked for are no mistake, nor is a second copy of a tied matrix.
    known = {
        w.source_of(layer) for w in _stacked(names) for layer in range(int(names["NUM_LAYERS"]))
    }
    known |= {*expected, *([_LM_HEAD] if tied else [])}
    problems += [f"`{name}` is not a tensor of Qwen3" for name in sorted(found - known)]
    if problems:
        raise WeightsError(f"{checkpoint.directory}: {_some(problems)}")


def _some(problems: Iterable[str], most: int = 5) -> str:
    shown = list(problems)
    more = f"; and {len(shown) - most} more" if len(shown) > most else ""
    return "; ".join(shown[:most]) + more
