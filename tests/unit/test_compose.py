"""compose/compose.yaml keeps its promises: every container hardened, every image a variable, every port on loopback."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
Service = dict[str, Any]
# Containers without a health check of their own, and why.
UNCHECKED = {"prepare": "it ends", "token": "it ends", "collector": "its image has no program that could ask"}


def loaded(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text())
    return document


SERVICES: dict[str, Service] = loaded("compose.yaml")["services"]


def faults(name: str, service: Service) -> list[str]:
    """Promises that this service breaks."""
    checks = {
        "runs as root": service.get("user", "root").split(":")[0] not in ("root", "0"),
        "its root is writable": service.get("read_only") is True,
        "keeps capabilities": service.get("cap_drop") == ["ALL"] and "cap_add" not in service,
        "may gain privileges": service.get("security_opt") == ["no-new-privileges:true"],
        "is privileged": not service.get("privileged")
        and service.get("pid") != "host"
        and service.get("ipc") != "host",
        "has no restart policy": "restart" in service,
        "has no memory limit": "memory" in service.get("deploy", {}).get("resources", {}).get("limits", {}),
        "its image is no variable": re.fullmatch(r"\$\{\w+(:-[^}]*)?\}", service.get("image", "")) is not None,
        "has no health check": "test" in service.get("healthcheck", {}) or name in UNCHECKED,
        "belongs to no profile": bool(service.get("profiles")),
        "is reachable from outside": all(str(port).startswith("127.0.0.1:") for port in service.get("ports", [])),
        "mounts the engine's socket": not any("docker.sock" in str(volume) for volume in service.get("volumes", [])),
    }
    return [fault for fault, fine in checks.items() if not fine]


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_hardened(name: str) -> None:
    assert faults(name, SERVICES[name]) == []


def test_a_careless_service_is_noticed() -> None:
    careless = {
        "image": "envoy:latest",
        "privileged": True,
        "ports": ["8000:8000"],
        "volumes": ["/var/run/docker.sock:/s"],
    }
    assert len(faults("careless", careless)) == 12


def test_every_image_and_base_has_a_value_in_both_environments() -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    wanted = set(re.findall(r"\$\{((?:IMAGE|BASE)_\w+)", text))
    for name in (".env", "offline/.env"):
        values = dict(
            line.split("=", 1) for line in (COMPOSE / name).read_text().splitlines() if re.match(r"\w+=", line)
        )
        assert wanted <= set(values) and all(values.values()), name
    pinned = dict(re.findall(r"^((?:IMAGE|BASE)_\w+)=(\S+)$", (COMPOSE / ".env").read_text(), re.MULTILINE))
    assert all(re.search(r":v?\d|:local$|:gpu$", image) for image in pinned.values()), pinned


def test_no_interpolated_name_is_a_setting_of_baton() -> None:
    """A BATON_ variable in the shell would reach every `baton` command there, which refuses unknown ones."""
    assert re.findall(r"\$\{BATON_\w+", (COMPOSE / "compose.yaml").read_text()) == []


@pytest.mark.parametrize("profile", ["full", "lite", "tls"])
def test_a_profile_has_a_gateway_and_two_workers_of_each_tier(profile: str) -> None:
    prefix = "" if profile == "full" else f"{profile}-"
    members = {name for name, service in SERVICES.items() if profile in service["profiles"]}
    mesh = {f"{prefix}{name}" for name in ("gateway", "prefill-1", "prefill-2", "decode-1", "decode-2")}
    assert mesh <= members
    assert (members == mesh | {"token"}) == (profile == "lite")


@pytest.mark.parametrize(
    ("profile", "guard"), [("lite", "BATON_MESH_TOKEN_FILE"), ("tls", "BATON_TLS_CA"), ("full", "BATON_SIDECAR")]
)
def test_every_service_of_a_mesh_asks_its_peers_who_they_are(profile: str, guard: str) -> None:
    commands = (["serve", "gateway"], ["serve", "prefill"], ["serve", "decode"])
    mesh = [one for one in SERVICES.values() if profile in one["profiles"] and one.get("command") in commands]
    assert len(mesh) == 5 and all(guard in service["environment"] for service in mesh)


def test_whatever_a_service_waits_for_starts_with_every_profile_of_it() -> None:
    for name, service in SERVICES.items():
        for other in service.get("depends_on", {}):
            assert set(service["profiles"]) <= set(SERVICES[other]["profiles"]), f"{name} waits for {other}"


def test_every_sidecar_shares_its_network_with_its_service() -> None:
    sidecars = [name for name in SERVICES if name.endswith("-envoy")]
    assert len(sidecars) == 5
    for sidecar in sidecars:
        assert SERVICES[sidecar.removesuffix("-envoy")]["network_mode"] == f"service:{sidecar}"


def test_files_that_are_mounted_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE / source).exists(), source


@pytest.mark.parametrize("section", ["receivers", "processors", "exporters"])
def test_the_collector_defines_what_its_pipelines_name(section: str) -> None:
    config = loaded("collector.yaml")
    for pipeline in config["service"]["pipelines"].values():
        assert set(pipeline[section]) == set(config[section])


def test_prometheus_scrapes_every_member() -> None:
    jobs = {
        job["job_name"]: job["static_configs"][0]["targets"]
        for job in loaded("../deploy/prometheus/prometheus.yaml")["scrape_configs"]
    }
    sidecars = {name.removesuffix("-envoy") for name in SERVICES if name.endswith("-envoy")} | {"edge"}
    assert {target.partition(":")[0] for target in jobs["envoy"]} == sidecars


def test_the_bill_of_materials_names_every_distribution_and_what_it_requires(tmp_path: Path) -> None:
    target = tmp_path / "bill.json"
    subprocess.run([sys.executable, COMPOSE / "sbom.py", "--name", "image", "--output", target], check=True)
    bill = json.loads(target.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    versions = {entry["name"].lower(): entry["version"] for entry in bill["components"]}
    assert {"grpcio", "numpy", "tokenizers"} <= set(versions) and all(versions.values())
    known = {entry["bom-ref"] for entry in bill["components"]}
    assert all(set(entry["dependsOn"]) <= known and entry["ref"] in known for entry in bill["dependencies"])
    requires = {entry["ref"].split("@")[0]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert any(ref.startswith("pkg:pypi/grpcio@") for ref in requires["pkg:pypi/grpcio-status"])
