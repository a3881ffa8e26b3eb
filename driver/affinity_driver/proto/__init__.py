"""The kubelet's gRPC contracts: vendored ``.proto`` files and what protoc makes of them.

Kubernetes calls all of these files ``api.proto``; two of that name in one process collide in protobuf's
descriptor pool, so each has a name of its own here and is otherwise byte for byte upstream's (see NOTICE).
``generate.py`` makes the ``_pb2`` modules; a test generates again and compares. No ``_pb2_grpc`` files: six
methods are served with grpc's generic handlers (``kubeletplugin``), which ties nobody to a grpcio version.
"""
