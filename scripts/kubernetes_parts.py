"""The parts of a Kubernetes cluster of one node, how they are started, and their settings."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from pathlib import Path

import kubernetes_host

PORTS = API, ETCD, PEER, KUBELET = 16443, 12379, 12380, 20250
NODE = "127.0.0.1"  # a node of this name has this address, and so all stays on loopback
PAUSE = "envweave-pause:1"
IMAGES = [
    "envweave-base:latest",
    "echo-env:latest",
    "envweave-lineworld:latest",
    "coding-env:latest",
    "envweave-python:3.11",
]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envweave-ci"
PLACE = CACHE / "kubernetes"
RUN, LOGS, KEYS = PLACE / "run", PLACE / "log", PLACE / "pki"
STARTED, LOADED = PLACE / "started.json", PLACE / "loaded.json"
CONFIG = PLACE / "kubeconfig"
SOCKET = RUN / "containerd.sock"
PARTS = ["containerd", "etcd", "apiserver", "controllers", "scheduler", "kubelet"]


def write_settings(where: Path) -> None:
    """Write the configuration of the parts, with a new token, and delete their stored state."""
    for folder in (RUN, LOGS, KEYS / "api", PLACE / "cni"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("etcd", "kubelet", "ipam"):
        shutil.rmtree(RUN / name, ignore_errors=True)
    if not (KEYS / "sa.key").exists():
        key, public = str(KEYS / "sa.key"), str(KEYS / "sa.pub")
        for command in (f"genrsa -out {key} 2048", f"rsa -in {key} -pubout -out {public}"):
            subprocess.run(["openssl", *command.split()], capture_output=True, check=True)
    token = secrets.token_hex(16)
    (KEYS / "tokens.csv").write_text(f'{token},admin,1,"system:masters"\n')
    templates = Path(__file__).with_name("kubernetes_settings")
    words = {
        "PLACE": PLACE,
        "RUN": RUN,
        "CNI": where / "cni",
        "PAUSE": f"docker.io/library/{PAUSE}",
    }
    words |= {"BRIDGE": kubernetes_host.BRIDGE, "TOKEN": token, "API": API, "KUBELET": KUBELET}
    for template in sorted(templates.iterdir()):
        text = template.read_text()
        for word, value in words.items():
            text = text.replace(f"@{word}@", str(value))
        folder = PLACE / "cni" if template.suffix == ".conflist" else PLACE
        (folder / template.name).write_text(text)
    CONFIG.chmod(0o600)


def commands(where: Path) -> dict[str, list[str | Path]]:
    """Return how each part is started."""
    at, peer = f"http://127.0.0.1:{ETCD}", f"http://127.0.0.1:{PEER}"
    programs = where / "bin"
    quiet = ["--bind-address=127.0.0.1", "--port=0", "--secure-port=0", "--leader-elect=false"]
    return {
        "containerd": ["containerd", "--config", PLACE / "containerd.toml"],
        "etcd": [
            programs / "etcd",
            f"--data-dir={RUN / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={at}",
            f"--advertise-client-urls={at}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ],
        "apiserver": [
            programs / "kube-apiserver",
            f"--etcd-servers={at}",
            "--bind-address=127.0.0.1",
            f"--secure-port={API}",
            f"--cert-dir={KEYS / 'api'}",
            "--service-cluster-ip-range=10.96.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={KEYS / 'sa.key'}",
            f"--service-account-key-file={KEYS / 'sa.pub'}",
            f"--token-auth-file={KEYS / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--disable-admission-plugins=ServiceAccount",
            "--kubelet-preferred-address-types=InternalIP,Hostname",
        ],
        "controllers": [
            programs / "kube-controller-manager",
            f"--kubeconfig={CONFIG}",
            f"--service-account-private-key-file={KEYS / 'sa.key'}",
            "--use-service-account-credentials=false",
            *quiet,
        ],
        "scheduler": [programs / "kube-scheduler", f"--kubeconfig={CONFIG}", *quiet],
        "kubelet": [
            programs / "kubelet",
            f"--config={PLACE / 'kubelet.yaml'}",
            f"--kubeconfig={CONFIG}",
            f"--root-dir={RUN / 'kubelet'}",
            f"--cert-dir={RUN / 'kubelet-pki'}",
            "--container-runtime=remote",
            f"--container-runtime-endpoint=unix://{SOCKET}",
            f"--hostname-override={NODE}",
        ],
    }
