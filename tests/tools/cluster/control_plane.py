"""etcd, API server, controller manager and scheduler, on a machine of their own."""

import datetime as dt
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.tools.cluster.machine import Machine, wait
from tests.tools.cluster.plan import Plan

_READY_SECONDS = 120.0
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlane(Machine):
    """The machine that all nodes talk to. Its clients have tokens, and its certificate is self-signed."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.folder / "control")
        self.plan = plan

    @property
    def client_certificate(self) -> Path:
        """The API server's certificate as a client of kubelets, which is its own authority."""
        return self.folder / "client.crt"

    def prepare(self) -> None:
        """Write tokens, kubeconfigs, keys and policies."""
        plan, folder = self.plan, self.folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        users = {"admin": ("admin", "system:masters")}
        users |= {name: (f"system:node:{name}", "system:nodes") for name in plan.names}
        tokens = {key: secrets.token_hex(16) for key in users}
        rows = [f'{tokens[key]},{user},{key},"{group}"\n' for key, (user, group) in users.items()]
        (folder / "tokens.csv").write_text("".join(rows))
        (folder / "audit.yaml").write_text(yaml.safe_dump(_AUDIT))
        _write_client_pair(folder)
        self._tokens = tokens

    def write_kubeconfigs(self) -> None:
        """Write the administrator's kubeconfig and those of the nodes. The API server's certificate must exist."""
        for key, token in self._tokens.items():
            target = self.plan.kubeconfig if key == "admin" else self.folder / f"{key}.kubeconfig"
            cluster = {
                "server": f"https://{self.plan.api_address}",
                "certificate-authority": str(self.folder / "serving" / "apiserver.crt"),
            }
            content = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "local", "cluster": cluster}],
                "users": [{"name": key, "user": {"token": token}}],
                "contexts": [{"name": "local", "context": {"cluster": "local", "user": key}}],
                "current-context": "local",
            }
            target.touch(mode=0o600)
            target.write_text(yaml.safe_dump(content))

    def start_etcd(self) -> None:
        """Start etcd, which also an API server that runs finds again."""
        peers, clients = "http://127.0.0.1:2380", "http://127.0.0.1:2379"
        where = [f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}"]
        self.begin("etcd", [str(self.plan.etcd), f"--data-dir={self.folder / 'etcd'}", *where])

    def start_api_server(self) -> None:
        """Start the API server. `api_ready` says when it answers."""
        plan, folder = self.plan, self.folder
        certificate, key = self.client_certificate, folder / "client.key"
        flags = {
            "advertise-address": plan.api_address,
            "allow-privileged": "true",
            "audit-log-path": folder / "audit.log",
            "audit-policy-file": folder / "audit.yaml",
            "authorization-mode": "Node,RBAC",
            "bind-address": "0.0.0.0",
            "cert-dir": folder / "serving",
            "enable-admission-plugins": "NodeRestriction",
            # without kube-proxy, the API server finds the pods behind a webhook's Service itself
            "enable-aggregator-routing": "true",
            "etcd-servers": "http://127.0.0.1:2379",
            "kubelet-client-certificate": certificate,
            "kubelet-client-key": key,
            "kubelet-preferred-address-types": "InternalIP",
            "secure-port": "443",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": certificate,
            "service-account-signing-key-file": key,
            "service-cluster-ip-range": plan.services,
            "token-auth-file": folder / "tokens.csv",
        }
        self.begin("kube-apiserver", _command(plan.bin / "kube-apiserver", flags))

    def wait_certificate(self, tell: Callable[[str], None]) -> None:
        """Wait until the API server has made its certificate. Raises ConfigurationError if it has ended."""
        made = self.folder / "serving" / "apiserver.crt"

        def exists() -> bool:
            self.need("kube-apiserver")
            return made.exists()

        wait("the API server's certificate", exists, _READY_SECONDS, tell)

    def start_controllers(self) -> None:
        """Start controller manager and scheduler."""
        plan, folder = self.plan, self.folder
        common = {"kubeconfig": plan.kubeconfig, "leader-elect": "false", "secure-port": "0"}
        manager = {
            "root-ca-file": folder / "serving" / "apiserver.crt",
            "service-account-private-key-file": folder / "client.key",
        }
        self.begin("kube-controller-manager", _command(plan.bin / "kube-controller-manager", common | manager))
        self.begin("kube-scheduler", _command(plan.bin / "kube-scheduler", common))

    def stop(self) -> None:
        """End all processes; the API server before etcd, because it does not end without etcd."""
        try:
            for name in ("kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"):
                self.kill(name, signal.SIGTERM)
        finally:
            self.end()


def _command(program: Path, flags: dict[str, object]) -> list[str]:
    return [str(program), *(f"--{name}={value}" for name, value in flags.items())]


def _write_client_pair(folder: Path) -> None:
    """Write a self-signed certificate that kubelets trust, and its key, which also signs service account tokens."""
    key = generate_private_key(SECP256R1())
    names = [(NameOID.ORGANIZATION_NAME, "system:masters"), (NameOID.COMMON_NAME, "kube-apiserver")]
    subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in names])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    (folder / "client.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = folder / "client.key"
    secret.touch(mode=0o600)
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
