"""YAML files as typed values: every mistake is reported with its file, line and column."""

from __future__ import annotations

import functools
import operator
import re
import types
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
import yaml

from aotc.errors import AotcError, Place, suggestion

KeyPath = tuple[str, ...]
"""The keys and list indices that lead to a node, such as `("dynamic", "BATCH_DYN", "max")`."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


class _Loader(yaml.SafeLoader):
    """A safe loader to which `1e-6` is a number, as in YAML 1.2; in 1.1 it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


class Document:
    """One YAML file, and where each of its keys and values stands.

    Raises AotcError for a file that cannot be read, is not YAML, is empty, or has a duplicate key
    or an alias.
    """

    def __init__(self, path: Path):
        self.path = path
        self.keys: dict[KeyPath, Place] = {}
        self.values: dict[KeyPath, Place] = {}
        self._seen: set[int] = set()
        self._raw = self._read()

    def convert(self, kind: type[_Struct]) -> _Struct:
        """Return the file as a `kind`; raise AotcError at the first entry that does not fit."""
        result: _Struct = self._convert(self._raw, kind, ())
        return result

    def _read(self) -> Any:
        try:
            loader = _Loader(self.path.read_text(encoding="utf-8"))
            node = loader.get_single_node()
        except OSError as error:
            raise AotcError(f"cannot read {self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise AotcError(f"{self.path} is not UTF-8 text") from None
        except RecursionError:
            raise AotcError(f"{self.path} is nested too deeply") from None
        except yaml.MarkedYAMLError as error:
            place = self._place(error.problem_mark) if error.problem_mark else None
            raise AotcError(f"not valid YAML: {error.problem}", place=place) from None
        except yaml.YAMLError as error:
            raise AotcError(f"{self.path} is not valid YAML: {error}") from None
        if node is None:
            raise AotcError("the file is empty", place=Place(self.path, 1, 1))
        return self._plain(loader, node, ())

    def _place(self, mark: yaml.Mark) -> Place:
        return Place(self.path, mark.line + 1, mark.column + 1)

    def _plain(self, loader: _Loader, node: yaml.Node, where: KeyPath) -> Any:
        place = self.values[where] = self._place(node.start_mark)
        # Only an alias brings a node back: a few nested ones expand without bound.
        if id(node) in self._seen:
            raise AotcError("YAML aliases are not supported", place=place, hint="repeat the value")
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self._plain_mapping(loader, node, where)
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return [self._plain(loader, item, (*where, str(index))) for index, item in items]
        try:
            return loader.construct_object(node)
        except (yaml.YAMLError, ValueError):
            raise AotcError(f"not a value: `{node.value}`", place=place) from None

    def _plain_mapping(
        self, loader: _Loader, node: yaml.MappingNode, where: KeyPath
    ) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                raise AotcError("a key must be plain text", place=place)
            key = str(key_node.value)
            if key in result:
                raise AotcError(f"duplicate key `{key}`", place=place)
            self.keys[(*where, key)] = place
            result[key] = self._plain(loader, value_node, (*where, key))
        return result

    def _convert(self, raw: Any, kind: Any, where: KeyPath) -> Any:
        """Return `raw` as a `kind`, one level of nesting at a time.

        msgspec converts and words the leaves only: of a mistake inside a mapping it would not tell
        the key.
        """
        kind, is_none = _without_none(kind, raw)
        if is_none:
            return None
        inner = _unwrapped(kind)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            return self._convert_struct(raw, inner, where)
        if get_origin(inner) is dict:
            return self._convert_mapping(raw, inner, where)
        if get_origin(inner) is tuple:
            item_kind = get_args(inner)[0]
            items = enumerate(self._container(raw, list, where))
            raw = [self._convert(item, item_kind, (*where, str(index))) for index, item in items]
        return self._leaf(raw, kind, self.values[where], _label(where))

    def _container(self, raw: Any, kind: type, where: KeyPath) -> Any:
        if isinstance(raw, kind):
            return raw
        expected = "a mapping" if kind is dict else "a list"
        raise AotcError(f"{_label(where)}expected {expected}", place=self.values[where])

    def _convert_mapping(self, raw: Any, kind: Any, where: KeyPath) -> dict[Any, Any]:
        key_kind, value_kind = get_args(kind)
        result = {}
        for key, value in self._container(raw, dict, where).items():
            path = (*where, key)
            key = self._leaf(key, key_kind, self.keys[path], "")
            result[key] = self._convert(value, value_kind, path)
        return result

    def _convert_struct(
        self, raw: Any, kind: type[msgspec.Struct], where: KeyPath
    ) -> msgspec.Struct:
        raw = self._container(raw, dict, where)
        known = kind.__struct_fields__
        for key in raw:
            if key not in known:
                hint = suggestion(key, known) or f"known keys: {', '.join(known)}"
                place = self.keys[(*where, key)]
                raise AotcError(f"unknown key `{key}`", place=place, hint=hint)
        fields = msgspec.structs.fields(kind)
        for field in fields:
            if field.required and field.name not in raw:
                message = f"{_label(where)}missing key `{field.name}`"
                raise AotcError(message, place=self.values[where])
        return kind(
            **{
                field.name: self._convert(raw[field.name], field.type, (*where, field.name))
                for field in fields
                if field.name in raw
            }
        )

    @staticmethod
    def _leaf(raw: Any, kind: Any, place: Place, label: str) -> Any:
        """Return `raw`, which has no struct or mapping inside, as a `kind`.

        A string that misses its pattern is named by the title of its `msgspec.Meta`.
        """
        if get_origin(kind) is Literal and raw not in get_args(kind):
            options = [str(option) for option in get_args(kind)]
            hint = suggestion(str(raw), options)
            message = f"{label}`{raw}` is not one of {', '.join(options)}"
            raise AotcError(message, place=place, hint=hint)
        meta = kind.__metadata__[0] if get_origin(kind) is Annotated else msgspec.Meta()
        if meta.pattern and isinstance(raw, str) and not re.fullmatch(meta.pattern, raw):
            raise AotcError(f"{label}`{raw}` is not a {meta.title}", place=place)
        try:
            return msgspec.convert(raw, kind)
        except msgspec.ValidationError as error:
            raise AotcError(f"{label}{error}", place=place) from None


def _unwrapped(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _without_none(kind: Any, raw: Any) -> tuple[Any, bool]:
    """Return `kind` without None, and whether `raw` is the None that it allows."""
    options = get_args(_unwrapped(kind))
    if types.NoneType not in options:
        return kind, False
    rest = [option for option in options if option is not types.NoneType]
    return functools.reduce(operator.or_, rest), raw is None


def _label(where: KeyPath) -> str:
    return f"`{'.'.join(where)}`: " if where else ""
