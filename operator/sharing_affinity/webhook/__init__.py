"""Admission of SharingAffinitySlices: tell a driver's author at once what would otherwise only show in
conditions.

A process of its own (``sharing-affinity webhook``), so that allocation neither waits for admission nor dies
with it, and the other way round. It is a courtesy, never a guard: the configuration ignores its failures,
because a node that starts must not hang on us, and the operator judges every slice again and fails closed.

    judging        what is wrong with a slice, in the API server's words; pure
    peers          the other slices of its pool, from a watch
    certificates   making and renewing what TLS needs; pure
    keeper         keeps certificates in a Secret, and the API server trusting them
    server         kopf's admission server with certificates that change while it runs
    app            puts them together
"""
