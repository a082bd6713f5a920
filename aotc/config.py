"""Model configs: read `models/NAME.yaml`, validate it strictly, resolve every extent.

`ModelFile` and `SymbolFields` are the one description of the file format; validation and the JSON
Schema for editors both come from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from aotc import expression
from aotc.errors import AotcError, Place, suggestion

Value = int | str
Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class SymbolFields(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Constraints of one dynamic dimension; each an integer or an expression.

    `min` and `max` are inclusive; `equals` fixes the dimension from other names.
    """

    min: Value | None = None
    max: Value | None = None
    multiple_of: Value | None = None
    equals: Value | None = None


class ModelFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The top level of a model config."""

    schema: Annotated[int, msgspec.Meta(ge=1, le=1)]
    model: str
    source: str
    extents: dict[Name, Value] = {}
    dynamic: dict[Name, SymbolFields] = {}


@dataclass(frozen=True)
class DynamicSymbol:
    """A dynamic dimension and its constraints, as parsed expressions over extents and symbols."""

    name: str
    minimum: expression.Expression | None
    maximum: expression.Expression | None
    multiple_of: expression.Expression | None
    equals: expression.Expression | None


@dataclass(frozen=True)
class Config:
    """A resolved model config: every static extent an integer, every symbol checked."""

    model: str
    source: Path
    extents: Mapping[str, int]
    symbols: Mapping[str, DynamicSymbol]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a model config."""
    return msgspec.json.schema(ModelFile)


def available_models(directory: Path) -> list[str]:
    """Return the names of the models in `directory`, sorted."""
    return sorted(path.stem for path in directory.glob("*.yaml"))


def load(model: str, directory: Path) -> Config:
    """Read and resolve `directory/model.yaml`.

    Raises AotcError, with file and line, for an unknown model, for text that is not YAML, for an
    unknown key or a wrong type, and for an expression that has no value.
    """
    names = available_models(directory)
    if model not in names:
        hint = suggestion(model, names) or f"models in {directory}: {', '.join(names) or 'none'}"
        raise AotcError(f"unknown model `{model}`", hint=hint)
    return _Reader(directory / f"{model}.yaml").read()


_Path = tuple[str, ...]


class _Reader:
    """Reads one file, and remembers where each of its keys and values stands."""

    def __init__(self, path: Path):
        self.path = path
        self.keys: dict[_Path, Place] = {}
        self.values: dict[_Path, Place] = {}
        self.seen: set[int] = set()

    def read(self) -> Config:
        raw = self._parse()
        try:
            file = msgspec.convert(raw, ModelFile)
        except msgspec.ValidationError as error:
            raise self._validation_error(str(error), raw) from None
        if file.model != self.path.stem:
            raise AotcError(
                f"model `{file.model}` in a file named `{self.path.name}`",
                place=self.values[("model",)],
                hint=f"name the file `{file.model}.yaml`, or the model `{self.path.stem}`",
            )
        extents = self._resolve_extents(file)
        return Config(
            model=file.model,
            source=self.path.parent / file.source,
            extents=extents,
            symbols=self._resolve_symbols(file, extents),
        )

    def _parse(self) -> Any:
        try:
            node = yaml.compose(self.path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except OSError as error:
            raise AotcError(f"cannot read {self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise AotcError(f"{self.path} is not UTF-8 text") from None
        except RecursionError:
            raise AotcError(f"{self.path} is nested too deeply") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            place = Place(self.path, mark.line + 1, mark.column + 1) if mark else None
            raise AotcError(f"not valid YAML: {error.problem}", place=place) from None
        except yaml.YAMLError as error:
            raise AotcError(f"{self.path} is not valid YAML: {error}") from None
        if node is None:
            raise AotcError("the file is empty", place=Place(self.path, 1, 1))
        return self._plain(node, ())

    def _plain(self, node: yaml.Node, where: _Path) -> Any:
        place = Place(self.path, node.start_mark.line + 1, node.start_mark.column + 1)
        self.values[where] = place
        # Only an alias brings a node back: a few nested ones expand without bound.
        if id(node) in self.seen:
            raise AotcError("YAML aliases are not supported", place=place, hint="repeat the value")
        self.seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            result: dict[str, Any] = {}
            for key_node, value_node in node.value:
                mark = key_node.start_mark
                key_place = Place(self.path, mark.line + 1, mark.column + 1)
                if not isinstance(key_node, yaml.ScalarNode):
                    raise AotcError("a key must be plain text", place=key_place)
                key = str(key_node.value)
                if key in result:
                    raise AotcError(f"duplicate key `{key}`", place=key_place)
                self.keys[(*where, key)] = key_place
                result[key] = self._plain(value_node, (*where, key))
            return result
        if isinstance(node, yaml.SequenceNode):
            return [
                self._plain(item, (*where, str(index))) for index, item in enumerate(node.value)
            ]
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError):
            raise AotcError(f"not a value: `{node.value}`", place=place) from None
        finally:
            loader.dispose()

    def _validation_error(self, text: str, raw: Any) -> AotcError:
        """Turn a msgspec message, `PROBLEM - at `$.a.b``, into one with the file's line."""
        problem, _, location = text.partition(" - at `")
        if "key` in `" in location or "[...]" in location:
            return self._inside_mapping(problem, location, raw)
        where = tuple(re.findall(r"[^.$\[\]`]+", location))
        unknown = re.search(r"unknown field `(.*)`", problem)
        if unknown is None:
            return AotcError(problem, place=self.values.get(where))
        return self._unknown_key(unknown[1], where, ModelFile)

    def _unknown_key(self, key: str, where: _Path, fields: type[msgspec.Struct]) -> AotcError:
        known = fields.__struct_fields__
        hint = suggestion(key, known) or f"known keys: {', '.join(known)}"
        return AotcError(f"unknown key `{key}`", place=self.keys.get((*where, key)), hint=hint)

    def _inside_mapping(self, problem: str, location: str, raw: Any) -> AotcError:
        """msgspec does not name the key inside a mapping: find the entry that does not convert."""
        for section, kind in (("extents", Value), ("dynamic", SymbolFields)):
            if f"$.{section}" not in location:
                continue
            for where in [path for path in self.keys if len(path) == 2 and path[0] == section]:
                try:
                    msgspec.convert(where[1], Name)
                except msgspec.ValidationError:
                    return AotcError(f"`{where[1]}` is not a name", place=self.keys[where])
                try:
                    msgspec.convert(raw[section][where[1]], kind)
                except msgspec.ValidationError as error:
                    text = str(error)
                    unknown = re.search(r"unknown field `(.*)`", text)
                    if unknown is not None:
                        return self._unknown_key(unknown[1], where, SymbolFields)
                    inner, _, field = text.partition(" - at `$.")
                    place_path = (*where, field.rstrip("`")) if field else where
                    return AotcError(f"`{where[1]}`: {inner}", place=self.values[place_path])
        return AotcError(problem, place=self.values[()])

    def _expression(self, value: Value, where: _Path) -> expression.Expression:
        try:
            return expression.parse(str(value))
        except expression.ExpressionError as error:
            raise AotcError(str(error), place=self.values[where]) from None

    def _resolve_extents(self, file: ModelFile) -> dict[str, int]:
        parsed = {
            name: self._expression(value, ("extents", name)) for name, value in file.extents.items()
        }
        resolved: dict[str, int] = {}

        def resolve(name: str, chain: tuple[str, ...]) -> None:
            if name in resolved:
                return
            place = self.values[("extents", name)]
            if name in chain:
                cycle = " -> ".join((*chain[chain.index(name) :], name))
                raise AotcError(f"extents form a cycle: {cycle}", place=place)
            for needed in parsed[name].names:
                if needed not in parsed:
                    raise self._unknown_name(needed, parsed, place)
                resolve(needed, (*chain, name))
            try:
                resolved[name] = parsed[name].evaluate(resolved)
            except expression.ExpressionError as error:
                raise AotcError(f"extent `{name}`: {error}", place=place) from None
            if resolved[name] < 0:
                raise AotcError(f"extent `{name}` is negative: {resolved[name]}", place=place)

        for name in parsed:
            resolve(name, ())
        return {name: resolved[name] for name in parsed}

    def _resolve_symbols(
        self, file: ModelFile, extents: Mapping[str, int]
    ) -> dict[str, DynamicSymbol]:
        known = [*extents, *file.dynamic]
        symbols: dict[str, DynamicSymbol] = {}
        for name, fields in file.dynamic.items():
            if name in extents:
                raise AotcError(
                    f"`{name}` is both a static extent and a dynamic symbol",
                    place=self.keys[("dynamic", name)],
                )
            parsed: dict[str, expression.Expression | None] = {}
            for field in SymbolFields.__struct_fields__:
                value = getattr(fields, field)
                where = ("dynamic", name, field)
                parsed[field] = None if value is None else self._expression(value, where)
                for needed in parsed[field].names if parsed[field] else ():  # type: ignore[union-attr]
                    if needed not in known:
                        raise self._unknown_name(needed, known, self.values[where])
            symbols[name] = DynamicSymbol(
                name, parsed["min"], parsed["max"], parsed["multiple_of"], parsed["equals"]
            )
        return symbols

    @staticmethod
    def _unknown_name(name: str, known: Iterable[str], place: Place) -> AotcError:
        hint = suggestion(name, known) or "define it under `extents`"
        return AotcError(f"unknown name `{name}`", place=place, hint=hint)
