"""The manager's configuration in tests."""

from crrd.manager.daemon import ManagerConfig

CONFIG = ManagerConfig(
    kubeconfig="",
    namespace="crrd-system",
    identity="one",
    webhook_address="127.0.0.1:0",
    drain_seconds=0.0,
    service="crrd-manager",
    names=("127.0.0.1",),
    secret="tls",
    default_deadline_slack=3600,
    webhook_configurations=(),
    tls_cert_file="",
    tls_key_file="",
    ca_file="",
    client_ca_file="",
    pull_resources="",
    deny_without_daemon=False,
    readiness_gate="labelled",
    via_patch=False,
    judge_addresses=(),
    bind_address="127.0.0.1:0",
    log_format="console",
    log_level="error",
)
