"""The gRPC stubs of ``proto/framegate/control/v1``, written by ``make proto``."""
