"""Provisioning: certificates and start-up kits from FLARE, with what is locked down, and the job that is a leg.

    STUDY/coordinator/   stays at the centre: the server's and the administrator's kits, private keys
    STUDY/kits/SITE/     goes to the site: its FLARE kit, a copy of the study, limits.toml

Sites refuse code that comes with a job (`byoc`), shell commands and anything but this study's two classes; FLARE's
shipping of logs to the server is left out.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fsgld.engines.flare.site import Limits
from fsgld.errors import InputError
from fsgld.study import FILES, Study

CLASSES = ("fsgld.engines.flare.collab.", "nvflare.collab.runtime.")
LONGEST_ABSENCE = 20  # seconds without a sign of life after which the server forgets a site


def owner(kit: Path) -> str:
    """Name the site that a kit was made for by its certificate: the folder may have been renamed."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    certificate = x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())
    return str(certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def target(kit: Path) -> str:
    """Give the host and port that a kit connects to."""
    return str(json.loads((kit / "startup" / "fed_client.json").read_text())["servers"][0]["service"]["target"])


def provision(study: Study) -> list[Path]:
    """Make the kits, if that has not been done; give the sites' folders."""
    centre, kits = study.folder / "coordinator", study.folder / "kits"
    facts = {"name": study.name, "sites": list(study.sites), "host": study.host, "port": study.port}
    mark = centre / "provisioned.json"
    if mark.is_file():
        if json.loads(mark.read_text()) != facts:
            raise InputError(
                f"{study.folder} was provisioned for other sites, another name, host or port; move {centre} and {kits}"
                " away to make new kits, and hand them out again"
            )
    else:
        made = _provision(study, centre / "provision")
        for participant, target in _targets(study).items():
            shutil.copytree(made / participant, target, dirs_exist_ok=True)
        _lock_down_server(centre / "server")
        shutil.rmtree(centre / "provision")
        for site in study.sites:
            _complete(study, kits / site)
        mark.write_text(json.dumps(facts))
    for site in study.sites:
        for name in FILES:
            (kits / site / "study").mkdir(exist_ok=True)
            shutil.copy(study.folder / name, kits / site / "study" / name)
    return [kits / site for site in study.sites]


def admin(study: Study) -> str:
    """Name the one administrator, who submits legs."""
    return f"admin@{study.name}.org"


def organisation(site: str) -> str:
    """Name a site's organisation, as FLARE spells such names."""
    return re.sub("[^a-z0-9]", "_", site)


def write_job(study: Study, members: list[str]) -> Path:
    """Write the job of a leg: names of classes and sites, no code."""
    job = study.folder / "coordinator" / "job"
    config = job / "app" / "config"
    config.mkdir(parents=True, exist_ok=True)
    _write(job / "meta.json", {
        "name": f"fsgld-{study.name}", "resource_spec": {}, "min_clients": 1,
        "deploy_map": {"app": ["server", *members]},
    })  # fmt: skip
    _write(config / "config_fed_server.json", {
        "format_version": 2, "task_data_filters": [], "task_result_filters": [],
        "components": [{"id": "coordinator", "path": "fsgld.engines.flare.collab.Coordinator", "args": {}}],
        "workflows": [{"id": "controller", "path": "nvflare.collab.runtime.controller.CollabController",
                       "args": {"server_obj_id": "coordinator", "collab_obj_ids": [], "sync_task_timeout": 60}}],
    })  # fmt: skip
    _write(config / "config_fed_client.json", {
        "format_version": 2, "task_data_filters": [], "task_result_filters": [],
        "components": [{"id": "member", "path": "fsgld.engines.flare.collab.Member", "args": {}}],
        "executors": [{"tasks": ["*"], "executor": {"path": "nvflare.collab.runtime.executor.CollabExecutor",
                                                    "args": {"client_obj_id": "member", "collab_obj_ids": []}}}],
    })  # fmt: skip
    return job


def _targets(study: Study) -> dict[str, Path]:
    """Say where each participant's kit goes."""
    centre = study.folder / "coordinator"
    kits = {site: study.folder / "kits" / site for site in study.sites}
    return {study.host: centre / "server", admin(study): centre / "admin"} | kits


def _provision(study: Study, folder: Path) -> Path:
    """Let FLARE make keys, certificates and configurations."""
    try:
        from nvflare.lighter.entity import Project
        from nvflare.lighter.impl.cert import CertBuilder
        from nvflare.lighter.impl.signature import SignatureBuilder
        from nvflare.lighter.impl.static_file import StaticFileBuilder
        from nvflare.lighter.impl.workspace import WorkspaceBuilder
        from nvflare.lighter.provisioner import Provisioner
    except ImportError:
        raise ImportError("a federation needs NVIDIA FLARE: pip install 'fsgld[flare]'") from None
    project = Project(study.name, "", props={"api_version": 3})
    project.set_server(study.host, "centre", {"fed_learn_port": study.port, "admin_port": study.port})
    for site in study.sites:
        project.add_client(site, organisation(site), {})
    project.add_admin(admin(study), "centre", {"role": "project_admin"})
    builders = [
        WorkspaceBuilder(template_file=["master_template.yml"]),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(),
        SignatureBuilder(),
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        context = Provisioner(str(folder), builders).provision(project)
    return Path(context.get_result_location())


def _complete(study: Study, kit: Path) -> None:
    """Lock a site's kit down and add what fsgld needs."""
    resources = _resources(kit)
    resources["allow_log_streaming"] = False
    resources["client"]["retry_timeout"] = 5
    kept = ("resource_manager", "resource_consumer", "process_launcher")
    resources["components"] = [c for c in resources["components"] if c["id"] in kept]
    for component in resources["components"]:
        if component["id"] == "resource_manager":
            component["args"] |= {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0}
    _write(kit / "local" / "resources.json", resources)
    _authorise(kit, operate="none")
    limits = "\n".join(f"{name} = {value}" for name, value in asdict(Limits()).items())
    (kit / "limits.toml").write_text(f"# What this site allows; its owner may change it.\n{limits}\n")
    (kit / "readme.txt").write_text(
        f"Start-up kit of {kit.name} for the study {study.name}. Read study/study.toml and study/model.py: nothing else"
        f" runs here.\nThen: fsgld site {kit.name} --data FILE\nstartup/client.key is a secret.\n"
    )


def _lock_down_server(kit: Path) -> None:
    """Keep the server's files in its folder, and let legs follow each other quickly."""
    resources = _resources(kit)
    resources["servers"][0]["heart_beat_timeout"] = LONGEST_ABSENCE
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(kit / "snapshots")
    kept = ("job_scheduler", "job_manager", "job_store", "process_launcher")
    resources["components"] = [c for c in resources["components"] if c["id"] in kept]
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(kit / "jobs")
        if component["id"] == "job_scheduler":
            component["args"] |= {"max_jobs": 8, "min_schedule_interval": 0.5, "max_schedule_interval": 1.0,
                                  "max_schedule_count": 60}  # fmt: skip
    resources["components"] += [{"id": "doorkeeper", "path": f"{CLASSES[0]}Doorkeeper", "args": {}}]
    _write(kit / "local" / "resources.json", resources)
    _authorise(kit, operate="any")


def _resources(kit: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((kit / "local" / "resources.json.default").read_text())
    return found | {"class_list_enforcement_mode": "enforce", "class_allow_list": list(CLASSES)}


def _authorise(kit: Path, operate: str) -> None:
    """Let the administrator submit and end legs, and nothing else."""
    rights = {"submit_job": "any", "manage_job": "any", "view": "any", "operate": operate}
    rights |= dict.fromkeys(("clone_job", "download_job", "shell_commands", "byoc", "server-predeployed-flwr"), "none")
    _write(kit / "local" / "authorization.json", {"format_version": "1.0", "permissions": {"project_admin": rights}})


def _write(file: Path, facts: Any) -> None:
    file.write_text(json.dumps(facts, indent=1) + "\n")
