"""Reads ``Settings`` from a file and the environment, and reports errors that name the file and key."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import yaml
from pydantic import BaseModel, ValidationError

from reliable_channel.config.fixed import FIXED, find_fixed
from reliable_channel.config.model import ENVIRONMENT_PREFIX, Settings
from reliable_channel.config.section import SECRET_NAME
from reliable_channel.core.errors import ConfigurationError

FILE_VARIABLE = "RELIABLE_CHANNEL_CONFIG"
DEFAULT_NAME = "local"
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}


def find_shipped(name: str, folder: str = "conf") -> Traversable:
    """A file of ``conf/``, ``jobs/`` or ``notebooks/``, or the folder itself for an empty name: inside the package when
    installed from a wheel, beside it in a checkout."""
    installed = resources.files("reliable_channel") / f"_{folder}" / name
    if installed.is_file() or installed.is_dir():
        return installed
    checkout = resources.files("reliable_channel") / ".." / folder / name
    if isinstance(checkout, Path):
        checkout = checkout.resolve()
    return checkout


def load(source: str | Path | None = None, **overrides: Any) -> Settings:
    """The effective configuration.

    ``source``: a YAML file, or the name of one in ``conf/`` without suffix; None uses ``RELIABLE_CHANNEL_CONFIG``, else
    ``local``. ``overrides``: whole or partial sections that override everything else (for tests and commands). Raises
    ``ConfigurationError`` naming the file (or environment variable) and the key.
    """
    name = str(source or os.environ.get(FILE_VARIABLE) or DEFAULT_NAME)
    file = _find(name)
    from_file = _read(file)
    environment = _read_environment()
    try:
        _refuse_fixed(environment)
        _refuse_fixed(from_file)
        return Settings(**_merge(_merge(from_file, environment), overrides))
    except ValidationError as error:
        wrong = "; ".join(_list_sentences(error, file, from_file))
        raise ConfigurationError(f"{wrong}.", _find_remedy(error)) from None
    except ConfigurationError as error:  # the core's own ranges
        raise ConfigurationError(f"{_locate(error.cause, file)}: {error.cause}", error.remedy) from None


def _merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Both contents, also of the mappings inside them; where both have a value, that of ``upper``."""
    merged = {**lower}
    for key, value in upper.items():
        below = lower.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _read_environment() -> dict[str, Any]:
    """What the variables set, in the form of a file. Raises ``ConfigurationError`` for a variable of no section, since
    a typing error must not go unnoticed, and for a list or mapping that is not JSON."""
    content: dict[str, Any] = {}
    for variable in sorted(filter(_is_ours, os.environ), key=str.lower):  # that of a section before those of its keys
        path = variable[len(ENVIRONMENT_PREFIX) :].lower().split("__")
        if path[0] not in Settings.model_fields:
            raise ConfigurationError(
                f"The environment variable {variable} names no section of the configuration.",
                f"Sections are {', '.join(Settings.model_fields)}.",
            )
        value: Any = os.environ[variable]
        if _takes_json(path):
            try:
                value = json.loads(value)
            except ValueError:  # its text has the value, which may be secret
                raise ConfigurationError(
                    f"The environment variable {variable} is not valid JSON.",
                    """Write lists and mappings as JSON, such as '["/my-app/1/*/proto"]'.""",
                ) from None
        for key in reversed(path):
            value = {key: value}
        content = _merge(content, value)
    return content


def _refuse_fixed(content: dict[str, Any]) -> None:
    """Refuse keys that are constants of the code."""
    if names := sorted(find_fixed(content)):
        raise ConfigurationError(
            f"{', '.join(names)} {'are no settings' if len(names) > 1 else 'is no setting'}.",
            "Leave it out: the code has a fixed value. `reliable-channel config show` shows the settings.",
        )


class _StrictLoader(yaml.SafeLoader):
    """Parses YAML and refuses duplicate keys, of which YAML would silently use the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key} appears twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _find(name: str) -> Traversable:
    path = Path(name).expanduser()
    if path.suffix in {".yaml", ".yml"} or len(path.parts) > 1:
        if path.is_file():
            return path
    elif (shipped := find_shipped(f"{name}.yaml")).is_file():
        return shipped
    raise ConfigurationError(
        f"The configuration file {name} does not exist.", "Name a YAML file, or one of conf/: local, cluster."
    )


def parse_yaml(content: str | bytes, file: object) -> Any:
    """The values of a YAML text. Raises ``ConfigurationError``, which names ``file`` and the line, if it is not valid
    or has a key twice."""
    try:
        return yaml.load(content, _StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        # Not the error's own text: its snippet of the file may hold a secret.
        mark = error.problem_mark or error.context_mark
        position = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(f"{file}{position}: not valid YAML: {error.problem}.", "Correct the file.") from None
    except yaml.YAMLError:
        raise ConfigurationError(f"{file} is not UTF-8 text.", "Write the file as UTF-8 YAML.") from None


def _read(file: Traversable) -> dict[str, Any]:
    content = parse_yaml(file.read_bytes(), file)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(f"{file} holds no mapping.", "Write sections with keys: see conf/local.yaml.")
    for section, values in content.items():  # a variable that sets a key of the section would replace it silently
        if section in Settings.model_fields and not isinstance(values, dict | None):
            raise ConfigurationError(f"{file}: {section} is no mapping.", "Write its keys: see conf/local.yaml.")
    return content


def _is_ours(variable: str) -> bool:
    return variable.upper().startswith(ENVIRONMENT_PREFIX)


def _list_sentences(error: ValidationError, file: Traversable, from_file: dict[str, Any]) -> Iterable[str]:
    """All wrong keys with where they were set; values are shown only if they are certainly not secret."""
    for item in error.errors(include_url=False, include_context=False):
        if item["type"] == "default_factory_not_called":  # follows from another error of this list
            continue
        path = [str(part) for part in item["loc"]]
        key = ".".join(path)
        if item["type"] in _UNKNOWN:
            yield f"{_find_origin(path, file, from_file)}: unknown key {key}"
        else:
            reason = item["msg"].removeprefix("Value error, ")
            # An address with an @ may have a password in it.
            hidden = _is_secret(path) or isinstance(item["input"], (dict, list)) or "@" in str(item["input"])
            got = "" if hidden else f", got {item['input']!r}"
            yield f"{_find_origin(path, file, from_file)}: {key}: {reason}{got}"


def _find_origin(path: list[str], file: Traversable, from_file: dict[str, Any]) -> str:
    """The environment variable that set this key (or its section), else the file, else the caller."""
    names = {variable.upper(): variable for variable in os.environ}
    for length in range(len(path), 0, -1):
        wanted = ENVIRONMENT_PREFIX + "__".join(path[:length]).upper()
        if wanted in names:
            return f"environment variable {names[wanted]}"
    if not path or path[0] in from_file:
        return str(file)
    under = ENVIRONMENT_PREFIX + "__".join(path).upper() + "__"
    for upper, variable in names.items():
        if upper.startswith(under):
            return f"environment variable {variable}"
    return "configuration"


def _locate(cause: str, file: Traversable) -> str:
    """The environment variable whose last part is the key that a cause names, or whose JSON holds it, else the file."""
    keys = {word.strip(".,:").rsplit(".", 1)[-1] for word in cause.split()}
    for variable, value in os.environ.items():
        if not _is_ours(variable):
            continue
        if variable.rsplit("__", 1)[-1].lower() in keys or any(f'"{key}"' in value for key in keys):
            return f"environment variable {variable}"
    return str(file)


def _find_type(path: list[str]) -> Any:
    """The declared type of a key: a section (model or dataclass), a plain type, or None when nothing is known."""
    declared: Any = Settings
    for part in path:
        section = _section_of(declared)
        if section is None:  # inside a list or a mapping: its container decides whether it is secret
            return declared
        if is_dataclass(section):
            declared = get_type_hints(section).get(part)
        else:
            field = section.model_fields.get(part)
            declared = field.annotation if field else None
    return declared


def _section_of(declared: Any) -> Any:
    """The section (model or dataclass) that a type is, or is if it is not unset; None for any other type."""
    if is_dataclass(declared) or (isinstance(declared, type) and issubclass(declared, BaseModel)):
        return declared
    members = get_args(declared) if get_origin(declared) in (Union, UnionType) else ()
    return next(filter(None, map(_section_of, members)), None)


def _takes_json(path: list[str]) -> bool:
    """Whether a variable gives this key as JSON: a section, list or mapping. What is inside a mapping is text."""
    return _section_of(_find_type(path[:-1])) is not None and _is_compound(_find_type(path))


def _is_compound(declared: Any) -> bool:
    if get_origin(declared) in (Union, UnionType, Annotated):
        return any(map(_is_compound, get_args(declared)))
    return _section_of(declared) is not None or get_origin(declared) in (dict, list, tuple, frozenset)


def _is_secret(path: list[str]) -> bool:
    """Whether the value of a key may hold a secret: it is declared or named so, or a section, or nothing is known about
    it."""
    declared, is_named = _find_type(path), SECRET_NAME.search(".".join(path)) is not None
    return declared is None or is_named or _section_of(declared) is not None or "Secret" in str(declared)


def _find_remedy(error: ValidationError) -> str:
    """The remedy: for unknown keys, the list of existing ones; for wrong values, to correct them."""
    known: dict[str, str] = {}
    for item in error.errors():
        if item["type"] in _UNKNOWN:
            path = [str(part) for part in item["loc"][:-1]]
            if keys := [key for key in _list_keys(_find_type(path)) if ".".join([*path, key]) not in FIXED]:
                where = f"Keys of {'.'.join(path)}" if path else "Sections"
                known[".".join(path)] = f"{where} are {', '.join(keys)}."
    return " ".join(known.values()) or "Correct the value."


def _list_keys(section: Any) -> list[str]:
    """The keys of a section, empty inside lists and mappings."""
    if is_dataclass(section):
        return [field.name for field in fields(section)]
    return list(getattr(section, "model_fields", ()))
