"""Stand-ins that tests share: a clock, transports, the control plane."""
