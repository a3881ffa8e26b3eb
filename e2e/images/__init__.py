"""The images that clusters run: named here, described by the Dockerfiles beside this file, and also
made without Docker.

Nothing is tagged `latest`, whose default pull policy would ask a registry that does not exist.
`localhost` is no host to pull from either: an image that was not loaded is an error at once, not a
time-out.
"""

TEST = "localhost/sharing-affinity/test:1"
OPERATOR = "localhost/sharing-affinity/operator:0.1.0"
DRIVER = "localhost/sharing-affinity/driver:0.1.0"
