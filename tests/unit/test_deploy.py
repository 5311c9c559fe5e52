"""The files of deploy/ name commands, options, files and settings that exist, publish nothing and run nothing as root.

No image can be built here and no cluster runs: what these tests cannot see, docs/howto/deploy.md says.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from reliable_channel.cli.app import build
from reliable_channel.config import load
from reliable_channel.config.loading import find_shipped
from reliable_channel.config.model import MetricsSettings
from reliable_channel.pipeline.runner.queries import CHAIN

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(path for path in (DEPLOY / "systemd").iterdir() if path.suffix in {".service", ".timer"})
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
MANIFESTS = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    if path.stem != "kustomization"
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
INSTALLED = "/opt/reliable-channel/bin/"
TEXTS = {path: path.read_text(encoding="utf-8") for path in sorted(DEPLOY.rglob("*")) if path.is_file()}


def pod_of(manifest: dict[str, Any]) -> dict[str, Any] | None:
    spec = manifest.get("spec", {})
    spec = spec["jobTemplate"]["spec"] if manifest["kind"] == "CronJob" else spec
    pod: dict[str, Any] | None = spec.get("template", {}).get("spec")
    return pod


PODS = {manifest["metadata"]["name"]: pod for manifest in MANIFESTS if (pod := pod_of(manifest))}
DEPLOYMENTS = {manifest["metadata"]["name"]: manifest for manifest in MANIFESTS if manifest["kind"] == "Deployment"}


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Every command line of the files, as words, with where it is."""
    for name, service in SERVICES.items():
        if "command" in service:
            yield f"compose {name}", service["command"]
    for name, pod in PODS.items():
        for container in pod["containers"]:
            yield f"kubernetes {name}", container["command"]
    for unit in UNITS:
        for line in re.findall(r"^Exec\w+=(.*)$", TEXTS[unit], re.MULTILINE):
            yield f"systemd {unit.name}", shlex.split(line)
    for line in re.findall(r"^(?:RUN|CMD) (.*reliable-channel.*)$", CONTAINERFILE, re.MULTILINE):
        if not line.startswith("python -m venv"):
            yield "Containerfile", yaml.safe_load(line) if line.startswith("[") else shlex.split(line)


def our_arguments(words: list[str]) -> Iterator[list[str]]:
    """What follows ``reliable-channel`` in a command line, and in what a shell substitutes inside it."""
    words = words[2:] if words[:2] == ["tini", "--"] else words
    if words[:2] == ["sh", "-c"]:
        for inner in re.findall(r"\$\((reliable-channel [^)]*)\)", words[2]):
            yield shlex.split(inner)[1:]
    elif words[0].removeprefix(INSTALLED) == "reliable-channel":
        yield words[1:]


OURS = [
    pytest.param(arguments, id=f"{where}: {' '.join(arguments)}")
    for where, words in command_lines()
    for arguments in our_arguments(words)
]
PLACES = {where.partition(" ")[0] for where, _ in command_lines()}


def test_there_is_something_to_check() -> None:
    assert {"compose", "kubernetes", "systemd", "Containerfile"} == PLACES
    assert len(OURS) > 20


@pytest.mark.parametrize("arguments", OURS)
def test_every_command_and_option_exists(arguments: list[str]) -> None:
    command: Any = typer.main.get_command(build())
    context: Any = command.make_context("reliable-channel", list(arguments))
    while getattr(command, "commands", None):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, list(rest), parent=context)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_setting_exists_and_has_a_valid_value(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration refuses an unknown variable and an invalid value, and names it."""
    values = dict(re.findall(r"(RELIABLE_CHANNEL__\w+)(?:=|: |, value: )(.*?)(?: \\| #.*|\})?$", TEXTS[path], re.M))
    for name in re.findall(r"RELIABLE_CHANNEL__\w+", TEXTS[path]):
        value = "0123456789abcdef" if name.endswith("TOKEN") else re.sub(r"^\$\{\w+:-(.*)\}?$", r"\1", values[name])
        monkeypatch.setenv(name, value.strip("'\""))
    load()


def test_every_variable_is_one_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match="NOT_THERE"):
        monkeypatch.setenv("RELIABLE_CHANNEL__KAFKA__NOT_THERE", "1")
        load()


def test_every_file_of_the_package_exists() -> None:
    names = {name for text in TEXTS.values() for name in re.findall(r"reliable-channel files ([\w.-]+)", text)}
    assert len(names) > 4
    for name in names:
        assert any(find_shipped(name, folder).is_file() for folder in ("conf", "jobs", "notebooks")), name


def test_every_file_that_the_container_copies_exists_and_is_sent() -> None:
    sent = {line[1:] for line in TEXTS[DEPLOY / "Containerfile.dockerignore"].splitlines() if line.startswith("!")}
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.*)$", CONTAINERFILE, re.MULTILINE) for word in line.split()[:-1]
    }
    assert copied == sent
    assert all((ROOT / name).exists() for name in copied)
    folders = {Path(line.split("=")[0].strip().strip('"')) for line in _force_included()}
    assert {str(folder) for folder in folders} <= copied


def _force_included() -> list[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return text.partition("force-include]\n")[2].partition("\n\n")[0].splitlines()


def test_the_container_is_locked_and_not_root() -> None:
    stages = re.split(r"^FROM ", CONTAINERFILE, flags=re.MULTILINE)[1:]
    assert len(stages) == 2
    installs = re.findall(r"pip install ([^&\n]*)", CONTAINERFILE)
    assert all("--require-hashes" in line or line.rstrip().endswith("--no-deps .") for line in installs)
    assert "pip install" not in stages[1]
    users = re.findall(r"^USER (\d+):(\d+)$", stages[1], re.MULTILINE)
    assert users == [("10001", "10001")]


def test_compose_mounts_files_that_exist_and_volumes_that_it_has() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            there = (DEPLOY / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"]
            assert there, f"{name}: {volume}"
        for other in service.get("depends_on", {}):
            assert other in SERVICES


def test_compose_publishes_nothing_off_loopback() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == 4
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in published)
    assert not any("network_mode" in service or service.get("privileged") for service in SERVICES.values())


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_of_compose_is_root_or_may_become_it(name: str) -> None:
    service = SERVICES[name]
    assert int(service["user"].split(":")[0]) > 0
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_prometheus_and_grafana_read_the_files_of_the_project() -> None:
    scrape = yaml.safe_load(TEXTS[DEPLOY / "prometheus.yaml"])
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"])
    assert mounts["../conf/prometheus-rules.yml"] == f"/etc/prometheus/{scrape['rule_files'][0]}"
    assert scrape["scrape_configs"][0]["static_configs"][0]["targets"] == [f"pipeline:{MetricsSettings().port}"]
    board = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])["../conf/grafana-dashboard.json"]
    providers = yaml.safe_load(TEXTS[DEPLOY / "grafana" / "boards.yaml"])["providers"]
    assert str(Path(board).parent) == providers[0]["options"]["path"]
    sources = yaml.safe_load(TEXTS[DEPLOY / "grafana" / "datasource.yaml"])["datasources"]
    assert sources[0]["url"] == "http://prometheus:9090"


def test_kustomize_names_every_manifest() -> None:
    text = TEXTS[DEPLOY / "kubernetes" / "kustomization.yaml"]
    others = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in others if name in text} == others
    assert set(yaml.safe_load(text)["resources"]) == others - {"bridge.yaml"}


@pytest.mark.parametrize(
    "manifest", MANIFESTS, ids=lambda manifest: f"{manifest['kind']} {manifest['metadata']['name']}"
)
def test_manifests_have_the_structure_of_their_kind(manifest: dict[str, Any]) -> None:
    versions = {"Deployment": "apps/v1", "CronJob": "batch/v1", "NetworkPolicy": "networking.k8s.io/v1"}
    assert manifest["apiVersion"] == versions.get(manifest["kind"], "v1")
    assert set(manifest) == {"apiVersion", "kind", "metadata", "data" if manifest["kind"] == "ConfigMap" else "spec"}
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", manifest["metadata"]["name"])
    if manifest["kind"] == "ConfigMap":
        assert all(isinstance(value, str) for value in manifest["data"].values())
    if manifest["kind"] == "Deployment":
        wanted = manifest["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= manifest["spec"]["template"]["metadata"]["labels"].items()
        assert manifest["spec"]["template"]["spec"].get("restartPolicy", "Always") == "Always"
    if manifest["kind"] == "CronJob":
        assert len(manifest["spec"]["schedule"].split()) == 5
        assert manifest["spec"]["concurrencyPolicy"] == "Forbid"
        assert manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_a_checkpoint_has_one_writer() -> None:
    assert {query.name for query in CHAIN} <= set(DEPLOYMENTS)
    for manifest in DEPLOYMENTS.values():
        assert manifest["spec"]["replicas"] == 1
        assert manifest["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize("name", PODS)
def test_no_pod_is_root_or_may_become_it(name: str) -> None:
    pod = PODS[name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in pod["containers"]:
        allowed = container["securityContext"]
        assert allowed["allowPrivilegeEscalation"] is False
        assert allowed["readOnlyRootFilesystem"] is True
        assert allowed["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        assert {"requests", "limits"} == set(container["resources"])


def test_pods_name_things_that_exist_and_secrets_by_reference() -> None:
    there = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in MANIFESTS}
    assert not any(kind == "Secret" for kind, _ in there)
    for pod in PODS.values():
        for volume in pod["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in there
        for source in pod["containers"][0]["envFrom"]:
            if "configMapRef" in source:
                assert ("ConfigMap", source["configMapRef"]["name"]) in there
    settings = next(manifest["data"] for manifest in MANIFESTS if manifest["kind"] == "ConfigMap")
    assert not any(re.search("TOKEN|PASSWORD", name) for name in settings)


@pytest.mark.parametrize(("offset", "query"), list(enumerate(CHAIN, start=1)))
def test_jobs_are_probed_on_their_metrics_port(offset: int, query: Any) -> None:
    container = PODS[query.name]["containers"][0]
    assert container["ports"] == [{"name": "metrics", "containerPort": MetricsSettings().port + offset}]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/metrics", "port": "metrics"}


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: unit.name)
def test_units_are_hardened_and_not_root(unit: Path) -> None:
    lines = set(TEXTS[unit].splitlines())
    assert {
        "User=reliable-channel", "NoNewPrivileges=true", "CapabilityBoundingSet=", "ProtectSystem=strict",
        "ProtectHome=true", "PrivateTmp=true", "UMask=0077", "EnvironmentFile=/etc/reliable-channel/environment",
    } <= lines  # fmt: skip


def test_what_runs_for_good_comes_back_after_any_number_of_failures_and_after_a_reboot() -> None:
    for unit in UNITS:
        lines = TEXTS[unit].splitlines()
        assert ("Restart=on-failure" in lines) == ("StartLimitIntervalSec=0" in lines), unit.name
    # Docker starts no container with on-failure when the machine starts.
    assert {service["restart"] for service in SERVICES.values() if "restart" in service} == {"unless-stopped"}


def test_systemd_understands_the_units(tmp_path: Path) -> None:
    """``verify`` wants programs that exist, so the installed one is replaced by that of this environment."""
    if (verify := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    for unit in UNITS:
        text = TEXTS[unit].replace(INSTALLED, f"{Path(sys.executable).parent}/")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [verify, "verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    ours = [line for line in done.stderr.splitlines() if "reliable-channel" in line]
    assert not ours
    assert done.returncode == 0, done.stderr
