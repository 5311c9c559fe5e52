"""Checks what callers give: the values of a dataclass of settings, and the types of arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields
from enum import EnumType
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from reliable_channel.core.errors import ConfigurationError, LocalError

MAX_NUMBER = 2**53
"""The largest number: with the time (ms) added it fits everywhere, in JSON and snapshots too."""


def check_settings(settings: object, section: str = "", *, positive: Collection[str] = ()) -> None:
    """Check every field of ``settings``, an instance of a dataclass, and turn texts into members of enumerations.

    A number is finite and 0 to :data:`MAX_NUMBER`, those of ``positive`` are 1 or more. ``section`` precedes the names
    of fields in errors. Raises ``ConfigurationError`` for any other value, without the value, which may be a key in the
    wrong place."""
    for name, accepted in _list_types(type(settings)):  # type: ignore[arg-type]  # its hash is that of a class
        value, key = getattr(settings, name), f"{section}{name}"
        if value.__class__ not in accepted and not any(_accepts(kind, value) for kind in accepted):
            enums = [kind for kind in accepted if isinstance(kind, EnumType) and value in list(kind)]
            if not enums:
                cause = f"{key} has a wrong value of type {type(value).__name__}."
                raise ConfigurationError(cause, f"Use {' or '.join(map(_describe, accepted))}.")
            object.__setattr__(settings, name, enums[0](value))  # the dataclass is frozen
        if value.__class__ in (int, float):
            if value < (lowest := int(name in positive)):
                raise ConfigurationError(f"{key} is below {lowest}.", f"Use {lowest} or more.")
            if not value <= MAX_NUMBER:
                raise ConfigurationError(f"{key} is above 2**53, or no number.", "Use a smaller one.")


def check_type(name: str, value: object, kind: type[Any]) -> None:
    """Raise ``LocalError`` unless the argument ``name`` is of this class or protocol."""
    if not isinstance(value, kind):
        raise LocalError(f"{name} is of type {type(value).__name__}.", f"Give {_describe(kind)}.")


@cache
def _list_types(kind: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The names of a dataclass's fields and the types that each accepts, without fields that take any object."""
    hints = get_type_hints(kind)
    listed = []
    for field in fields(kind):
        hint = hints[field.name]
        accepted = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if all(map(_is_checked, accepted)):
            listed.append((field.name, accepted))
    return tuple(listed)


def _is_checked(kind: Any) -> bool:
    """Whether values of this type are checked here: collections and protocols without ``runtime_checkable`` are not."""
    only_static = getattr(kind, "_is_protocol", False) and not getattr(kind, "_is_runtime_protocol", False)
    is_class = isinstance(kind, type) and kind is not object and not only_static
    return get_origin(kind) in (Literal, Callable) or (is_class and get_origin(kind) is None)


def _accepts(kind: Any, value: object) -> bool:
    if (origin := get_origin(kind)) is not None:
        return value in get_args(kind) if origin is Literal else callable(value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _describe(kind: Any) -> str:
    if get_origin(kind) is Callable:
        return "a function"
    if get_origin(kind) is Literal or isinstance(kind, EnumType):
        return " or ".join(map(str, get_args(kind) or kind))
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", NoneType: "None"}
    return names.get(kind) or f"a {kind.__name__}"
