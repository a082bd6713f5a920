"""Read the call contract of HOST wrappers, `@pl.jit.host`, from their annotations.

Grammar (PyPTO user guide, language/00-types): `pl.Tensor[[dims], pl.DTYPE]`, alone or inside
`pl.Out[...]` or `pl.InOut[...]`; a dim is an integer, or a name that the model config gives.
"""

from __future__ import annotations

import ast
from pathlib import Path

from aotc.config import Config
from aotc.contract import Contract, Dim, Direction, Parameter
from aotc.errors import AotcError, Place, suggestion

# The byte-addressable element types of the user guide's table.
DTYPES = {
    name: name.lower()
    for name in (
        *("BOOL", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64"),
        *("FP16", "BF16", "FP32"),
    )
}
_LANGUAGE = "pypto.language"


def read_wrappers(path: Path, config: Config) -> dict[str, Contract]:
    """Return the contract of every HOST wrapper in the file at `path`, by function name.

    Raises AotcError, with line and column, for text that is not Python, a parameter without an
    annotation, a bare `pl.Tensor`, an unknown dtype, and a dim that the config does not give.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise AotcError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AotcError(f"{path} is not UTF-8 text") from None
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        place = Place(path, error.lineno or 1, error.offset or 1)
        raise AotcError(f"not Python: {error.msg}", place=place) from None
    except ValueError as error:
        raise AotcError(f"{path} is not Python: {error}") from None
    return _Signatures(path, text.splitlines(), module, config).read()


class _Signatures:
    def __init__(self, path: Path, lines: list[str], module: ast.Module, config: Config):
        self.path = path
        self.lines = lines
        self.module = module
        self.config = config
        self.aliases = _language_aliases(module)

    def read(self) -> dict[str, Contract]:
        return {
            node.name: self._contract(node)
            for node in self.module.body
            if isinstance(node, ast.FunctionDef)
            and any(self._language_name(each) == "jit.host" for each in node.decorator_list)
        }

    def _contract(self, function: ast.FunctionDef) -> Contract:
        arguments = function.args
        for extra in (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs):
            if extra is not None:
                raise AotcError(
                    f"wrapper `{function.name}`: `{extra.arg}` is not a positional parameter",
                    place=self._place(extra),
                )
        parameters = (*arguments.posonlyargs, *arguments.args)
        return Contract(
            parameters=tuple(self._parameter(function.name, each) for each in parameters),
            symbols=self.config.symbols,
            extents=self.config.extents,
        )

    def _parameter(self, wrapper: str, node: ast.arg) -> Parameter:
        subject = f"wrapper `{wrapper}`, parameter `{node.arg}`"
        form = "write `pl.Tensor[[dims], pl.DTYPE]`, in `pl.Out[...]` where it is written"
        if node.annotation is None:
            raise AotcError(f"{subject}: no annotation", place=self._place(node), hint=form)
        annotation = node.annotation
        direction = Direction.IN
        if isinstance(annotation, ast.Subscript):
            written = self._language_name(annotation.value)
            if written in ("Out", "InOut"):
                direction = Direction.OUT if written == "Out" else Direction.INOUT
                annotation = annotation.slice
        if self._language_name(annotation) == "Tensor":
            raise AotcError(
                f"{subject}: a bare `pl.Tensor` has no shape",
                place=self._place(annotation),
                hint=form,
            )
        match annotation:
            case ast.Subscript(
                value=container, slice=ast.Tuple(elts=[ast.List(elts=dims), dtype])
            ) if self._language_name(container) == "Tensor":
                return Parameter(
                    node.arg,
                    self._dtype(subject, dtype),
                    tuple(self._dim(subject, axis, dim) for axis, dim in enumerate(dims)),
                    direction,
                )
        raise AotcError(
            f"{subject}: `{ast.unparse(annotation)}` is not supported in a HOST wrapper",
            place=self._place(annotation),
            hint=form,
        )

    def _dtype(self, subject: str, node: ast.expr) -> str:
        name = self._language_name(node)
        if name not in DTYPES:
            raise AotcError(
                f"{subject}: unknown dtype `{ast.unparse(node)}`",
                place=self._place(node),
                hint=f"dtypes: {', '.join(f'pl.{each}' for each in DTYPES)}",
            )
        return DTYPES[name]

    def _dim(self, subject: str, axis: int, node: ast.expr) -> Dim:
        match node:
            case ast.Constant(value=int() as extent) if not isinstance(extent, bool):
                return extent
            case ast.Name(id=name) if name in self.config.extents:
                return self.config.extents[name]
            case ast.Name(id=name) if name in self.config.symbols:
                return name
            case ast.Name(id=name):
                known = [*self.config.extents, *self.config.symbols]
                raise AotcError(
                    f"{subject}, dimension {axis}: the config of `{self.config.model}` "
                    f"does not give `{name}`",
                    place=self._place(node),
                    hint=suggestion(name, known) or "define it in the config",
                )
        raise AotcError(
            f"{subject}, dimension {axis}: `{ast.unparse(node)}` is not an integer or a name",
            place=self._place(node),
            hint="give the expression a name in the config",
        )

    def _language_name(self, node: ast.expr) -> str | None:
        """Return `X.Y` where `node` reads `pl.X.Y` under any alias of the language, else None."""
        dotted = ast.unparse(node)
        for alias in self.aliases:
            if dotted.startswith(f"{alias}."):
                return dotted.removeprefix(f"{alias}.")
        return None

    def _place(self, node: ast.expr | ast.arg) -> Place:
        # The AST counts columns in UTF-8 bytes; a Place counts characters.
        before = self.lines[node.lineno - 1].encode()[: node.col_offset]
        return Place(self.path, node.lineno, len(before.decode()) + 1)


def _language_aliases(module: ast.Module) -> list[str]:
    package, _, member = _LANGUAGE.rpartition(".")
    aliases: list[str] = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            aliases += [each.asname or each.name for each in node.names if each.name == _LANGUAGE]
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            aliases += [each.asname or each.name for each in node.names if each.name == member]
    return aliases
