"""Several machines: hubs, roles, the open streams, the doctor."""
