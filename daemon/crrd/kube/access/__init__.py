"""How a client reaches the API server: kubeconfigs, exec plugins, ServiceAccounts and proxies."""
