"""The files in deploy/ name options, keys and ports that exist, and give no process needless rights."""

import configparser
import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from braidstream.cli.main import app
from braidstream.config import load
from tests.deploy.test_prometheus import DEPLOY

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
ROOT = DEPLOY.parent


def check_words(words: list[str]) -> None:
    """A verb, or a group of them and one of it, and options that it has."""
    verb, *rest = words
    command = COMMANDS[verb]
    if hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in rest if word.startswith("--")} <= known, words


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").glob("*.service")), ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_that_exists_without_privileges(unit: Path, tmp_path: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit.read_text())
    service = parser["Service"]
    program, *words = service["ExecStart"].split()
    assert program.endswith("/braid")
    check_words(words)
    rights = (service["DynamicUser"], service["NoNewPrivileges"], service["ProtectSystem"])
    assert rights == ("yes", "yes", "strict")
    assert service["Restart"] == "always"
    assert service["MemoryMax"] in ("512M", "1G", "3G")
    if "--region ${REGION}" in service["ExecStart"]:
        assert service["User"], "units that share a port need the same user"
    assert parser["Unit"]["StartLimitIntervalSec"] == "0"
    if shutil.which("systemd-analyze"):
        text = unit.read_text().replace("/opt/braid/bin/braid", shutil.which("true") or "/bin/true")
        copy = tmp_path / unit.name.replace("@", "@us-east")
        copy.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True)
        assert "Unknown" not in done.stderr, done.stderr


def manifests() -> list[dict[str, Any]]:
    return [*yaml.safe_load_all((DEPLOY / "kubernetes" / "braidstream.yaml").read_text())]


def test_the_manifests_are_valid_for_kubernetes() -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="run make setup")
    for each in manifests():
        schemas.validate(each, schemas.latest_version(), strict=True)


def test_pods_run_commands_that_exist_with_probes_and_without_privileges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINK_PASSWORD", "secret")
    config = tmp_path / "braid.toml"
    config.write_text(next(each for each in manifests() if each["kind"] == "ConfigMap")["data"]["braid.toml"])
    region = load(config).region[0]
    pods = [each["spec"]["template"]["spec"] for each in manifests() if each["kind"] == "Deployment"]
    assert len(pods) == 2
    for pod, address in zip(pods, (region.listen, region.gateway_metrics), strict=True):
        [container] = pod["containers"]
        check_words(container["args"])
        assert address is not None
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["metrics"] == int(address.rpartition(":")[2])
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_clients_of_the_gateway_use_tls_with_files_of_a_secret() -> None:
    [pod] = [
        pod_of(each) for each in manifests() if each["metadata"]["name"] == "braid-gateway" and pod_of(each)
    ]
    [container] = pod["containers"]
    secrets = {each["name"] for each in pod["volumes"] if "secret" in each}
    folders = [each["mountPath"] for each in container["volumeMounts"] if each["name"] in secrets]
    for option in ("--tls-cert", "--tls-key"):
        file = container["args"][container["args"].index(option) + 1]
        assert str(Path(file).parent) in folders


def test_a_policy_says_who_may_connect_to_each_pod_and_names_ports_that_it_has() -> None:
    policies = {
        each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]: each["spec"]
        for each in manifests()
        if each["kind"] == "NetworkPolicy"
    }
    for each in manifests():
        if each["kind"] == "Deployment":
            policy = policies.pop(each["metadata"]["labels"]["app.kubernetes.io/component"])
            open_ports = [port["port"] for rule in policy["ingress"] for port in rule["ports"]]
            [container] = pod_of(each)["containers"]
            assert sorted(open_ports) == sorted(port["name"] for port in container["ports"])
            assert all(rule["from"] for rule in policy["ingress"])
    assert policies == {}


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest.get("spec", {}).get("template", {}).get("spec", {})
    return found


def test_selectors_match_the_labels_of_their_pods() -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"] for each in manifests() if each["kind"] == "Deployment"
    ]
    for each in manifests():
        selector = each.get("spec", {}).get("selector")
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= found.items() for found in labels), each["metadata"]["name"]


def test_the_compose_file_runs_commands_that_exist() -> None:
    folder = DEPLOY / "container"
    services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    braids = {name: each for name, each in services.items() if "build" in each}
    assert len(braids) == 4
    for each in braids.values():
        check_words(each["command"])
        assert each["read_only"] is True
        assert (folder / each["build"]["context"] / each["build"]["dockerfile"]).exists()
    regions = {region.name for region in load(folder / "braid.toml").region}
    assert regions == {each["command"][each["command"].index("--region") + 1] for each in braids.values()}
    targets = yaml.safe_load((folder / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][
        0
    ]
    assert {target.partition(":")[0] for target in targets["targets"]} == set(braids)


def test_the_image_copies_files_that_exist_and_is_not_run_by_root() -> None:
    text = (DEPLOY / "container" / "Containerfile").read_text()
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M):
        assert all((ROOT / source).exists() for source in sources.split()), sources
    assert re.search(r"^USER 65532", text, re.M)
    assert "HEALTHCHECK" in text


def test_the_runbook_has_a_section_for_every_alert() -> None:
    runbook = (ROOT / "docs" / "guides" / "runbook.md").read_text()
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text().split("\nplugins:")[0])["site_url"]
    tested = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text())["tests"]
    fires = {each["alertname"] for test in tested for each in test["alert_rule_test"] if each["exp_alerts"]}
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"{site}guides/runbook/#{rule['alert'].lower()}"
        assert f"\n## {rule['alert']}\n" in runbook, rule["alert"]
        assert rule["alert"] in fires, "promtool has a test in which it fires"


def test_every_action_of_the_workflows_is_named_by_its_digest() -> None:
    used = [
        line.split("uses:")[1].strip()
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(used) > 5
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", each)] == []


def required(first: str) -> dict[str, str]:
    """What a package needs here, directly or not, with its extras: names and versions."""
    installed = {canonicalize_name(each.name): each for each in distributions()}
    found, wanted, seen = dict[str, str](), [Requirement(first)], set[str]()
    while wanted:
        asked = wanted.pop()
        if str(asked) in seen:
            continue
        seen.add(str(asked))
        each = installed[canonicalize_name(asked.name)]
        found[canonicalize_name(each.name)] = each.version
        for needs in map(Requirement, each.requires or ()):
            mark = needs.marker
            if mark is None or any(mark.evaluate({"extra": extra}) for extra in asked.extras or {""}):
                wanted.append(needs)
    return found


def test_every_installed_package_has_a_hash_that_setup_checked() -> None:
    """`make setup` installs constraints.hashes with --require-hashes, then this project."""
    text = (ROOT / "constraints.hashes").read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert all(len(words) > 1 for words in lines)
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for words in lines for word in words[1:])
    pinned = (ROOT / "constraints.txt").read_text().split()
    assert [words[0] for words in lines] == pinned, "run make hashes"
    checked = {canonicalize_name(pin.split("==")[0]): pin.split("==")[1] for pin in pinned}
    needed = required("braidstream[dev,docs,spark]")
    del needed["braidstream"]
    assert len(needed) > 100
    assert {name: version for name, version in needed.items() if checked.get(name) != version} == {}, (
        "run make setup; if that changes nothing, pin them in constraints.txt and run make hashes"
    )


def test_the_bill_of_materials_lists_what_is_installed() -> None:
    told = subprocess.run([sys.executable, ROOT / "scripts" / "sbom.py"], capture_output=True, check=True)
    bill = json.loads(told.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/braidstream@{version('braidstream')}"
    found = {part["purl"] for part in bill["components"]}
    assert {
        f"pkg:pypi/{name}@{version(name)}" for name in ("redis", "hiredis", "pyspark", "starlette")
    } <= found
    assert len(found) == len(bill["components"])


def test_a_report_of_a_bug_asks_for_what_the_doctor_says() -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    asked = {each["id"]: each for each in form["body"] if "id" in each}
    words = re.findall(r"`braid ([^`]+)`", asked["doctor"]["attributes"]["label"])[0].split()
    check_words(words)
    assert words == ["doctor", "--json"]
    assert asked["doctor"]["validations"] == {"required": True}


def test_a_citation_names_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert cited["repository-code"] == project["urls"]["Repository"]
