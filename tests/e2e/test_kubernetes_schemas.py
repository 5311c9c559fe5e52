"""The manifests of deploy/kubernetes fit the schemas of Kubernetes, which the package kubernetes-validate contains."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.venvs import make_locked_venv

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
MANIFESTS = sorted(
    path for path in (ROOT / "deploy" / "kubernetes").glob("*.yaml") if path.name != "kustomization.yaml"
)
"""Kustomize is not a part of Kubernetes's API, and has no schema there; tests/unit/test_deploy.py reads its file."""
VERSIONS = ("1.33", "1.37")


@pytest.fixture(scope="module")
def validate() -> Path:
    return make_locked_venv(ROOT / "tests" / "kubernetes" / "requirements.lock") / "kubernetes-validate"


def check(validate: Path, version: str, *manifests: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(validate), "--strict", "-k", version, *map(str, manifests)], capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_fits_the_schemas(validate: Path, version: str) -> None:
    done = check(validate, version, *MANIFESTS)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Couldn't find schema" not in said
    resources = sum(path.read_text(encoding="utf-8").count("\nkind: ") for path in MANIFESTS)
    assert said.count(" passed for resource ") == resources, said


def test_a_field_that_does_not_exist_is_refused(validate: Path, tmp_path: Path) -> None:
    (source,) = (path for path in MANIFESTS if path.name == "jobs.yaml")
    broken = tmp_path / "jobs.yaml"
    broken.write_text(source.read_text(encoding="utf-8").replace("replicas:", "replica:"), encoding="utf-8")
    assert check(validate, VERSIONS[-1], broken).returncode != 0
