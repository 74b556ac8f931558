"""What no schema sees: whether the objects of one rendering agree with each other, and with Baton.

Every name that an object refers to exists, Services and policies select pods that are there, and the settings that a
container gets are settings that `baton serve` accepts."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mesh.config.config_checks import ConfigError
from mesh.config.settings import Settings, read_settings
from tests.helm_check.chart import Document

GIVEN = re.compile(r"-tls$|^(models|packed-weights|public-tls|mesh-token|api-keys)$")  # the reader brings them
CONFIGS = {"models": "config.json", "adapters": "adapter_config.json"}  # what makes a folder one
SERVICES = {"gateway": Settings.gateway, "prefill": Settings.prefill, "decode": Settings.decode}


def problems(documents: list[Document]) -> Iterator[str]:
    there = {(each["kind"], each["metadata"]["name"]) for each in documents}
    pods = [each["spec"]["template"] for each in documents if "template" in each.get("spec", {})]
    for document in documents:
        for selector in selectors(document):
            if not any(selector.items() <= pod["metadata"]["labels"].items() for pod in pods):
                yield f"{label(document)} selects no pod: {selector}"
        target = document.get("spec", {}).get("scaleTargetRef")
        if target and (target["kind"], target["name"]) not in there:
            yield f"{label(document)} scales {target['name']}, which does not exist"
    for pod in pods:
        yield from pod_problems(pod["spec"], there)
    settings = next(each["data"] for each in documents if each["metadata"]["name"].endswith("-settings"))
    for pod in pods:
        for container in pod["spec"]["containers"]:
            if container["name"] in SERVICES:
                yield from setting_problems(container, settings["baton.toml"])


def label(document: Document) -> str:
    return f"{document['kind']} {document['metadata']['name']}"


def selectors(document: Document) -> Iterator[dict[str, str]]:
    """Labels by which the document finds pods."""
    spec = document.get("spec", {})
    if document["kind"] == "Service":
        yield spec["selector"]
    if document["kind"] in ("PodDisruptionBudget", "InferencePool"):
        yield spec["selector"]["matchLabels"]
    if document["kind"] == "NetworkPolicy":
        yield spec["podSelector"]["matchLabels"]
        for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
            for peer in (*rule.get("from", ()), *rule.get("to", ())):
                labels = peer.get("podSelector", {}).get("matchLabels", {})
                if "app.kubernetes.io/component" in labels:
                    yield labels


def pod_problems(spec: Document, there: set[tuple[str, str]]) -> Iterator[str]:
    """Mounts, volumes and the account of one pod."""
    containers = [*spec.get("initContainers", ()), *spec["containers"]]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
    for name in mounted ^ set(volumes):
        yield f"volume {name} of {spec['serviceAccountName']} is mounted or declared, not both"
    for volume in volumes.values():
        for kind, name in (
            ("ConfigMap", volume.get("configMap", {}).get("name")),
            ("Secret", volume.get("secret", {}).get("secretName")),
        ):
            if name and (kind, name) not in there and not GIVEN.search(name):
                yield f"volume {volume['name']}: there is no {kind} {name}"
    if ("ServiceAccount", spec["serviceAccountName"]) not in there:
        yield f"there is no account {spec['serviceAccountName']}"
    for container in containers:
        security = container["securityContext"]
        if not security["readOnlyRootFilesystem"] or security["allowPrivilegeEscalation"]:
            yield f"container {container['name']} may change its root or gain rights"
        if len({mount["mountPath"] for mount in container["volumeMounts"]}) != len(container["volumeMounts"]):
            yield f"container {container['name']} mounts twice at one path"


def setting_problems(container: Document, toml: str) -> Iterator[str]:
    """Whether `baton serve` would accept the container's file and variables."""
    try:
        build(container, toml)
    except ConfigError as error:
        yield f"container {container['name']}: {error}"


def build(container: Document, toml: str) -> Any:
    """The service's configuration. Files exist in the pod only: settings that name certificates are left out, and every
    model and adapter gets a folder below a temporary one."""
    with tempfile.TemporaryDirectory() as folder:

        def here(text: str) -> str:
            for place, kind in re.findall(r'(/(models|adapters)/[^",]+)', text):
                (Path(folder) / place[1:]).mkdir(parents=True, exist_ok=True)
                (Path(folder) / place[1:] / CONFIGS[kind]).write_text("{}")
            return re.sub("/(models|adapters)/", rf"{folder}/\1/", text)

        variables = {each["name"]: here(expand(each)) for each in container["env"] if "TLS_" not in each["name"]}
        file = Path(folder) / "settings"
        file.write_text(here(toml))
        return SERVICES[container["name"]](read_settings(file, variables))


def expand(variable: Document) -> str:
    """The variable's value as the first pod of a set sees it."""
    source = variable.get("valueFrom", {})
    if "fieldRef" in source:
        return "pod-0"
    if "resourceFieldRef" in source:
        return "4"
    return str(variable["value"]).replace("$(POD_NAME)", "pod-0")
