"""What kubelet does next about a pod, as its computePodActions has it: pure, values in and actions out."""
