"""The base class of all sections: frozen, and unknown keys are refused."""

import re
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Milliseconds = Annotated[int, Field(ge=0, description="ms")]
PositiveMilliseconds = Annotated[int, Field(gt=0, description="ms")]
Count = Annotated[int, Field(gt=0)]
Bytes = Annotated[int, Field(gt=0, description="bytes")]

SECRET_NAME = re.compile(r"(?i)secret|password|token|access[.]?key")
"""Matches the names of secrets among settings that are passed on unread, like Spark's ``spark.redaction.regex``."""


class Section(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
