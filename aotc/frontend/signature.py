"""Read the call contract of HOST wrappers, `@pl.jit.host`, from their annotations.

Grammar (PyPTO user guide, language/00-types): `pl.Tensor[[dims], pl.DTYPE]`, alone or inside
`pl.Out[...]` or `pl.InOut[...]`; a dim is an integer, or a name that the model config gives.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from pathlib import Path

from aotc.config import Config
from aotc.contract import Contract, ContractError, Dim, Direction, Parameter
from aotc.errors import AotcError, Place, suggestion
from aotc.frontend.source import SourceFile

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


def check_wrapper(file: SourceFile, wrapper: str, model: str, environment: Iterable[str]) -> None:
    """Check that each name in a dim of `wrapper`'s annotations is known, before anything runs.

    Known are `environment`, the names that the module binds, and Python's own. Raises AotcError,
    with line and column, for the first that is not.
    """
    known = list(environment)
    bound = {*known, *vars(builtins), *_module_names(file.tree)}
    if "*" in bound:
        return
    for function in file.tree.body:
        if not isinstance(function, ast.FunctionDef) or function.name != wrapper:
            continue
        for parameter in (*function.args.posonlyargs, *function.args.args):
            for axis, dim in _dims(parameter.annotation):
                for name in ast.walk(dim):
                    if isinstance(name, ast.Name) and name.id not in bound:
                        raise AotcError(
                            f"wrapper `{wrapper}`, parameter `{parameter.arg}`, dimension {axis}: "
                            f"the config of `{model}` does not give `{name.id}`",
                            place=file.place(name),
                            hint=suggestion(name.id, known) or "define it in the config",
                        )


def _dims(annotation: ast.expr | None) -> Iterable[tuple[int, ast.expr]]:
    lists = [] if annotation is None else ast.walk(annotation)
    return [pair for each in lists if isinstance(each, ast.List) for pair in enumerate(each.elts)]


def _module_names(tree: ast.Module) -> set[str]:
    """Return every name that the module may bind; `*` for a star import."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {(each.asname or each.name).partition(".")[0] for each in aliases}
    return names


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
        try:
            return Contract.of(
                [self._parameter(function.name, each) for each in parameters],
                self.config.symbols,
                self.config.extents,
            )
        except ContractError as error:
            message = f"wrapper `{function.name}`: {error.message}"
            raise AotcError(message, place=self._place(function)) from None

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

    def _place(self, node: ast.expr | ast.arg | ast.FunctionDef) -> Place:
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
