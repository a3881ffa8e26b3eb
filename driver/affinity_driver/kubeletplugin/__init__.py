"""The kubelet's side of the driver: sockets, registration, and the DRAPlugin service. Knows nothing of
devices.
"""
