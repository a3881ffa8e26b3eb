"""A mock NIC/FPGA DRA driver: the code that driver authors copy."""
