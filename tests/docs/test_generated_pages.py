"""The generated pages of docs/ are what the code says today."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import BaseModel, SecretStr

from reliable_channel.config import load
from reliable_channel.config.fixed import drop_fixed
from scripts.reference import PAGES, configuration
from scripts.reference.configuration import sections
from tests.support.doc_blocks import ROOT


@pytest.mark.parametrize(("path", "text"), PAGES.items(), ids=list(PAGES))
def test_the_page_is_current(path: str, text: Callable[[], str]) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == text(), "run: make docs-pages"


def test_every_key_of_the_configuration_is_on_its_page() -> None:
    shown = {
        (*path, key.name)
        for path, section, given in sections(configuration.Settings, (), None)  # type: ignore[attr-defined]
        for key in configuration.keys(section, given)
    }

    def walk(node: object, path: tuple[str, ...]) -> set[tuple[str, ...]]:
        if isinstance(node, dict) and path and path not in shown:
            return {leaf for key, value in node.items() for leaf in walk(value, (*path, key))}
        return {path}

    effective = drop_fixed(load("local").model_dump(exclude={"sds": {"jitter"}}))
    leaves = {leaf for key, value in effective.items() for leaf in walk(value, (key,))}
    lists_of_sections = {("channels", "content_topics"), ("store", "nodes"), ("messaging",)}
    assert leaves - shown <= lists_of_sections


def test_secrets_are_not_shown_even_as_defaults() -> None:
    class Section(BaseModel):
        token: SecretStr = SecretStr("hunter2 hunter2")

    assert "hunter2" not in str(configuration.keys(Section))
